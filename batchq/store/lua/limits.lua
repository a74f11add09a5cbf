-- A part of commit: checks charges against limits, and that the limits are those decided by.
-- The same rules in Python: batchq/store/rules.py.
-- KEYS: those of commit: 8 limits.
-- ARGV: those of commit: 3 overcommit in thousandths, 7 the key of the limits, 8 the revision seen.
-- Answers: nothing of its own.

-- No sum passes this: above it, Lua's numbers skip integers.
local MOST = 9007199254740991

-- A field beside the scopes: the revision of the limits' last change. No scope contains a space.
local LAST_CHANGE = 'last change'

-- Nodes' limits are no policy: each sum is checked against its limit here, and no decision weighs
-- several of them together.
local function is_of_node(scope) return string.sub(scope, 1, 5) == 'node:' end

-- Stored record by scope, and amounts by record: each is read once.
local stored, read = {}, {}

local function record_of(scope)
  if stored[scope] == nil then
    local record = redis.call('HGET', ARGV[7], scope)
    -- '' stands for a limit that this call has removed; batchq never stores it.
    stored[scope] = record == '' and 'nothing' or record
  end
  return stored[scope]
end

-- Returns the amounts of a record; false if it is malformed.
local function read_limit(record)
  if #record > MOST_RECORD_BYTES then return false end
  local is_one, amounts = pcall(cjson.decode, record)
  if not is_one or string.sub(record, 1, 1) ~= '{' then return false end
  for _, stated in pairs(amounts) do
    local units = units_of(stated)
    if not units or units < 0 then return false end
  end
  return amounts
end

local function amounts_of(scope, stated)
  local record = stated[scope] or record_of(scope)
  if not record or record == '' then return nil end
  if read[record] == nil then read[record] = read_limit(record) end
  if not read[record] then is_record_malformed = true end
  return read[record] or nil
end

-- Exact up to 2^53: a quotient that is no integer is too far from the next integer to round to it.
local function thousandth(number) return math.floor(number / 1000) end

local function limit_of(scope, name, plus, minus, stated)
  if scope == 'cluster' then
    -- Groups are counted, but nodes offer none: the cluster has no limit on them.
    if name == 'podgroups' then return MOST end
    local field, overcommit = 'capacity ' .. name, tonumber(ARGV[3])
    local units = sum(field) - (minus[field] or 0) + (plus[field] or 0)
    local rest = math.fmod(units, 1000)
    return math.min(MOST, thousandth(units) * overcommit + thousandth(rest * overcommit))
  end
  local amounts = amounts_of(scope, stated)
  local limit = amounts and amounts[name]
  if not limit and string.sub(scope, 1, 8) == 'objects:' then
    -- The limit for namespaces that state none of their own.
    amounts = amounts_of('objects:*', stated)
    limit = amounts and amounts[name]
  end
  if limit then return tonumber(limit) end
  return is_of_node(scope) and 0 or MOST
end

local seen = tonumber(ARGV[8])

-- The record '' removes the limit.
local function set_limit(scope, record)
  if record == '' then redis.call('HDEL', KEYS[8], scope) else redis.call('HSET', KEYS[8], scope, record) end
  stored[scope] = record
end

-- Runs after the writes: their revision is the one at which the limits change. The limits are the
-- words from `first` to before `past`.
local function set_limits(first, past, revision)
  for place = first, past - 1, PAIR do
    set_limit(words[place], words[place + 1])
    if not is_of_node(words[place]) then set_limit(LAST_CHANGE, text(revision)) end
  end
end

-- Whether a checked charge grows elsewhere than on a node, after limits have changed.
local function is_outdated(growths)
  if not seen then return false end
  local last_change = units_of(record_of(LAST_CHANGE) or '0')
  if not last_change then is_record_malformed = true end
  if (last_change or 0) <= seen then return false end
  for _, growth in ipairs(growths) do
    if growth[3] and not is_of_node(growth[1][1]) then return true end
  end
  return false
end

-- Compares sums as they will stand after the transaction; a sum that does not grow is not refused,
-- even above its limit. `need` is one holder's growth.
local function refuse_charges(plus, minus, growths, first_limit, past)
  if is_outdated(growths) then return {'conflict', 'the limits'} end
  local stated = {}
  for place = first_limit, past - 1, PAIR do stated[words[place]] = words[place + 1] end
  for _, growth in ipairs(growths) do
    local part, more = growth[1], growth[2]
    local scope, name, field = part[1], part[2], part[4]
    local taken, added = minus[field] or 0, plus[field]
    local rest = sum(field) - taken
    local limit = growth[3] and limit_of(scope, name, plus, minus, stated) or MOST
    if added > taken and added > limit - rest then
      local need = math.min(more, MOST)
      local found = math.min(MOST, rest + (math.min(added, MOST) - need))
      return {'limit', scope, name, text(need), text(limit), text(found)}
    end
  end
  return nil
end
