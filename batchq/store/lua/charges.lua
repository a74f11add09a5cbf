-- A part of commit: what charges do to the ledger's sums.
-- The same rules in Python: batchq/store/rules.py.
-- KEYS: those of commit: 6 ledger, 7 charges.
-- Answers: nothing by itself.

local function text(number) return string.format('%.0f', number) end

-- The sums that this call has to do with, and those among them that it changes, in order. Nobody else
-- writes while a script runs, so each is read once and written once.
local sums, moved, is_moved = {}, {}, {}

local function sum(field)
  local units = sums[field]
  if not units then
    units = tonumber(redis.call('HGET', KEYS[6], field) or '0')
    sums[field] = units
  end
  return units
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

local NOTHING = {parts = {}, by_field = {}}

-- By record: most holders of a call count for the same as others do.
local known = {}

-- What a holder counts for: parts {scope, resource, units, the ledger's field} in order, and units by
-- field.
local function held(record)
  if not record or record == '' then return NOTHING end
  local found = known[record]
  if found then return found end
  local decoded = cjson.decode(record)
  found = {parts = {}, by_field = {}}
  for _, scope in ipairs(decoded[1]) do
    for _, amount in ipairs(decoded[2]) do
      local field, units = scope .. ' ' .. amount[1], tonumber(amount[2])
      found.parts[#found.parts + 1] = {scope, amount[1], units, field}
      found.by_field[field] = units
    end
  end
  known[record] = found
  return found
end

-- By '<scope> <resource>' what the charges add and take, and each growth of a holder in order: the part
-- that grows, by how much, and whether that is checked. The charges are words from one place to
-- before another.
local function weigh(first, past)
  local plus, minus, growths = {}, {}, {}
  for place = first, past - 1, CHARGE do
    local old, new = held(value_of(KEYS[7], words[place])), held(words[place + 1])
    local checked = words[place + 2] == 'yes'
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
