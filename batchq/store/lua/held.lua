-- A part of commit: decodes the records of charges.
-- The same rules in Python: batchq/store/rules.py.
-- Answers: nothing of its own.

local NOTHING = {parts = {}, by_field = {}, is_countable = true}

-- Decoded charges by record: most holders in a call have identical records.
local known = {}

-- Bounds on one record's bytes, and on its scopes times amounts; batchq never exceeds them.
local MOST_RECORD_BYTES, MOST_PARTS = 262144, 16384

local function read_held(record)
  if #record > MOST_RECORD_BYTES then error('too long') end
  local decoded = cjson.decode(record)
  if #decoded[1] * #decoded[2] > MOST_PARTS then error('too many parts') end
  local found = {parts = {}, by_field = {}, is_countable = true}
  for _, scope in ipairs(decoded[1]) do
    for _, amount in ipairs(decoded[2]) do
      local field, digits = scope .. ' ' .. amount[1], string.match(amount[2], '^%d+$')
      local units = #digits < 40 and tonumber(digits) or 1 / 0
      found.is_countable = found.is_countable and #digits < 18
      found.parts[#found.parts + 1] = {scope, amount[1], units, field}
      found.by_field[field] = units
    end
  end
  return found
end

-- Returns what a holder is charged: parts {scope, resource, units, ledger field} in order, and
-- units by field; nil for a malformed record.
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

