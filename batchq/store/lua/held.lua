-- A part of commit: decodes the records of charges.
-- The same rules in Python: batchq/store/rules.py.
-- Answers: nothing of its own.

-- Values in `parts` for each part: scope, resource, units, ledger field. One flat list, since tables
-- cost more than what they hold.
local PART = 4
local NOTHING = {parts = {}, by_field = {}, is_countable = true}

-- Decoded charges by record: most holders in a call have identical records.
local known = {}

-- Bounds on one record's bytes, and on its scopes times amounts; batchq never exceeds them.
local MOST_RECORD_BYTES, MOST_PARTS = 262144, 16384

local function read_held(record)
  if #record > MOST_RECORD_BYTES then error('too long') end
  local decoded = cjson.decode(record)
  local scopes, amounts = decoded[1], decoded[2]
  if #scopes * #amounts > MOST_PARTS then error('too many parts') end
  local parts, count, is_countable, is_capacity = {}, 0, true, false
  for _, scope in ipairs(scopes) do
    is_capacity = is_capacity or scope == 'capacity'
    for _, amount in ipairs(amounts) do
      local name, digits = amount[1], string.match(amount[2], '^%d+$')
      is_countable = is_countable and #digits < 18
      parts[count + 1], parts[count + 2] = scope, name
      parts[count + 3] = #digits < 40 and tonumber(digits) or 1 / 0
      parts[count + 4] = scope .. ' ' .. name
      count = count + PART
    end
  end
  return {parts = parts, is_countable = is_countable, is_capacity = is_capacity}
end

-- Returns what a holder is charged: its parts in order; nil for a malformed record.
local function held(record)
  if not record or record == '' then return NOTHING end
  local found = known[record]
  if found == nil then
    local is_one, decoded = pcall(read_held, record)
    found = is_one and decoded
    known[record] = found
  end
  return found or nil
end

-- Returns the units by field.
local function units_in(one)
  if not one.by_field then
    local parts, by_field = one.parts, {}
    for place = 1, #parts, PART do by_field[parts[place + 3]] = parts[place + 2] end
    one.by_field = by_field
  end
  return one.by_field
end

