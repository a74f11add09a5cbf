-- A part of commit: applies charges to the ledger's sums.
-- The same rules in Python: batchq/store/rules.py.
-- KEYS: those of commit: 6 ledger, 7 charges.
-- Answers: nothing of its own.

local function text(number) return string.format('%.0f', number) end

-- The sums that this call uses, and the fields that it changes, in order. No other client writes
-- while a script runs, so each sum is read once and written once.
local sums, moved, is_moved = {}, {}, {}

-- Ledger fields whose sum is malformed, whether there are any, and whether a malformed limit or
-- charge was read: nothing is decided by them until the leader has recounted them (recount.lua).
local malformed, has_malformed, is_record_malformed = {}, false, false

local function know(field, stored)
  local units = units_of(stored or '0')
  if not units then malformed[field], has_malformed, units = true, true, 0 end
  sums[field] = units
  return units
end

local function sum(field)
  return sums[field] or know(field, redis.call('HGET', KEYS[6], field))
end

-- Reads the sums of these fields with few commands.
local function read_sums(fields)
  for first = 1, #fields, FIELDS do
    local last = math.min(first + FIELDS - 1, #fields)
    local some = redis.call('HMGET', KEYS[6], unpack(fields, first, last))
    for place = first, last do know(fields[place], some[place - first + 1]) end
  end
end

-- Whether a transaction with these additions and deductions depends on a malformed value.
local function is_malformed(plus, minus)
  local found = is_record_malformed
  is_record_malformed = false
  if not has_malformed then return found end
  for field in pairs(plus) do found = found or malformed[field] end
  for field in pairs(minus) do found = found or malformed[field] end
  return found
end

-- Exact: no sum passes 2^53 (limits.lua).
local function count(field, difference)
  sums[field] = sums[field] + difference
  if not is_moved[field] then is_moved[field], moved[#moved + 1] = true, field end
end

local function set_sums()
  for _, field in ipairs(moved) do
    set(KEYS[6], field, sums[field] == 0 and '' or text(sums[field]))
  end
end

-- A bound on the parts weighed in one call; batchq never exceeds it.
local MOST_PARTS_A_CALL = 500000
local parts_left = MOST_PARTS_A_CALL

-- Ends the call if it weighs too much; `values` are those of the parts to be weighed.
local function bound_parts(values)
  parts_left = parts_left - values / PART
  if parts_left < 0 then error(too_large('the size of the charges')) end
end

-- Values in `growths` for each growth of a holder: scope, resource, ledger field, by how much it
-- grows, and whether it is checked.
local GROWTH = 5

-- Returns what the charges add and deduct by '<scope> <resource>', whose sums are then known, and
-- the growths in order. The charges are the words from `first` to before `past`. Returns nothing if
-- a record is malformed.
local function weigh(first, past)
  local plus, minus, growths, unread, size = {}, {}, {}, {}, 0
  for place = first, past - 1, CHARGE do
    local old, new = held(value_of(KEYS[7], words[place])), held(words[place + 1])
    if not old or not new or not old.is_countable then return nil, nil, nil end
    local checked, before, after = words[place + 2] == 'yes', old.parts, new.parts
    bound_parts(#before + #after)
    local by_field = #after > 0 and units_in(old)
    for part = 1, #after, PART do
      local field = after[part + 3]
      local more = after[part + 2] - (by_field[field] or 0)
      if more > 0 then
        if not sums[field] and not plus[field] then unread[#unread + 1] = field end
        plus[field] = (plus[field] or 0) + more
        growths[size + 1], growths[size + 2], growths[size + 3] = after[part], after[part + 1], field
        growths[size + 4], growths[size + 5] = more, checked
        size = size + GROWTH
      end
    end
    by_field = #before > 0 and units_in(new)
    for part = 1, #before, PART do
      local field = before[part + 3]
      local less = before[part + 2] - (by_field[field] or 0)
      if less > 0 then
        if not sums[field] and not minus[field] then unread[#unread + 1] = field end
        minus[field] = (minus[field] or 0) + less
      end
    end
  end
  read_sums(unread)
  return plus, minus, growths
end
