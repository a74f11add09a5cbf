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

local function know(field, stored)
  local units = units_of(stored or '0')
  if not units then malformed[field], units = true, 0 end
  sums[field] = units
  return units
end

local function sum(field)
  return sums[field] or know(field, redis.call('HGET', KEYS[6], field))
end

-- Reads the sums of these fields that are not known yet, with few commands.
local function read_sums(plus, minus)
  local unread
  for _, fields in ipairs({plus, minus}) do
    for field in pairs(fields) do
      if not sums[field] then
        unread = unread or {}
        sums[field], unread[#unread + 1] = 0, field
      end
    end
  end
  for first = 1, unread and #unread or 0, FIELDS do
    local last = math.min(first + FIELDS - 1, #unread)
    local some = redis.call('HMGET', KEYS[6], unpack(unread, first, last))
    for place = first, last do know(unread[place], some[place - first + 1]) end
  end
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

-- A bound on the parts weighed in one call; batchq never exceeds it.
local MOST_PARTS_A_CALL = 500000
local parts_left = MOST_PARTS_A_CALL

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
