-- A part of commit: applies charges to the ledger's sums.
-- The same rules in Python: batchq/store/rules.py.
-- KEYS: those of commit: 6 ledger, 7 charges.
-- Answers: nothing of its own.

local function text(number) return string.format('%.0f', number) end

-- The sums that this call uses, and the fields that it changes, in order. No other client writes
-- while a script runs, so each sum is read once and written once.
local sums, moved, is_moved = {}, {}, {}

-- Ledger fields whose sum is malformed, and whether a malformed limit or charge was read: nothing
-- is decided by them until the leader has recounted them (recount.lua).
local malformed, is_record_malformed = {}, false

local function sum(field)
  local units = sums[field]
  if not units then
    local stored = redis.call('HGET', KEYS[6], field)
    units = units_of(stored or '0')
    if not units then malformed[field], units = true, 0 end
    sums[field] = units
  end
  return units
end

-- Whether a transaction with these additions and deductions depends on a malformed value.
local function is_malformed(plus, minus)
  local found = is_record_malformed
  for _, fields in ipairs({plus, minus}) do
    for field in pairs(fields) do
      sum(field)
      found = found or malformed[field]
    end
  end
  is_record_malformed = false
  return found
end

-- Exact: no sum passes 2^53 (limits.lua).
local function count(field, difference)
  sums[field] = sum(field) + difference
  if not is_moved[field] then is_moved[field], moved[#moved + 1] = true, field end
end

local function set_sums()
  for _, field in ipairs(moved) do
    set(KEYS[6], field, sums[field] == 0 and '' or text(sums[field]))
  end
end

local NOTHING = {parts = {}, by_field = {}, is_countable = true}

-- Decoded charges by record: most holders in a call have identical records.
local known = {}

-- Bounds on one record's bytes, on its scopes times amounts, and on the parts weighed in one call;
-- batchq never exceeds them.
local MOST_RECORD_BYTES, MOST_PARTS, MOST_PARTS_A_CALL = 262144, 16384, 500000
local parts_left = MOST_PARTS_A_CALL

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

-- Returns what the charges add and deduct by '<scope> <resource>', and each growth of a holder in
-- order: the part that grows, by how much, and whether it is checked. The charges are the words
-- from `first` to before `past`. Returns nothing if a record is malformed.
local function weigh(first, past)
  local plus, minus, growths = {}, {}, {}
  for place = first, past - 1, CHARGE do
    local old, new = held(value_of(KEYS[7], words[place])), held(words[place + 1])
    if not old or not new or not old.is_countable then return nil, nil, nil end
    local checked = words[place + 2] == 'yes'
    parts_left = parts_left - #old.parts - #new.parts
    if parts_left < 0 then error(too_large('the size of the charges')) end
    for _, part in ipairs(new.parts) do
      local field = part[4]
      local more = part[3] - (old.by_field[field] or 0)
      if more > 0 then
        plus[field] = (plus[field] or 0) + more
        growths[#growths + 1] = {part, more, checked}
      end
    end
    for _, part in ipairs(old.parts) do
      local field = part[4]
      local less = part[3] - (new.by_field[field] or 0)
      if less > 0 then minus[field] = (minus[field] or 0) + less end
    end
  end
  return plus, minus, growths
end
