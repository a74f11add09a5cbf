-- A part of commit: which limit charges would pass, and whether limits are those decided by.
-- The same rules in Python: batchq/store/rules.py.
-- KEYS: those of commit: 3 revision, 6 ledger, 8 limits.
-- ARGV: those of commit: 3 overcommit in thousandths, 7 the key of the limits, 8 the revision seen.
-- Answers: nothing by itself.

-- No sum passes this: above it, Lua's numbers skip integers.
local MOST = 9007199254740991

-- Beside the scopes: the revision of the limits' last change. No scope has a space in it.
local LAST_CHANGE = 'last change'

-- Nodes' limits are no policy: single sums are held against them here, and nothing is decided by
-- several of them together.
local function is_of_node(scope) return string.sub(scope, 1, 5) == 'node:' end

local function sum(field) return tonumber(redis.call('HGET', KEYS[6], field) or '0') end

-- Exact up to 2^53: a quotient that is no integer is then too far from the next one to round to it.
local function thousandth(number) return math.floor(number / 1000) end

local function limit_of(scope, name, plus, minus, stated)
  if scope == 'cluster' then
    -- Groups are counted, but nodes offer none: no number of them is too many for the cluster.
    if name == 'podgroups' then return MOST end
    local field, overcommit = 'capacity ' .. name, tonumber(ARGV[3])
    local units = sum(field) - (minus[field] or 0) + (plus[field] or 0)
    local rest = math.fmod(units, 1000)
    return math.min(MOST, thousandth(units) * overcommit + thousandth(rest * overcommit))
  end
  local record = stated[scope] or redis.call('HGET', ARGV[7], scope)
  local limit = record and record ~= '' and cjson.decode(record)[name]
  if limit then return tonumber(limit) end
  return is_of_node(scope) and 0 or MOST
end

-- Sets the field, or removes it where the value is ''.
local function put(hash, field, value)
  if value == '' then redis.call('HDEL', hash, field) else redis.call('HSET', hash, field, value) end
end

-- Read once: nobody else writes while the script runs.
local seen = tonumber(ARGV[8])
local last_change = seen and tonumber(redis.call('HGET', ARGV[7], LAST_CHANGE) or '0')

-- Comes after the writes: theirs is the revision from which on the limits are seen.
local function set_limits(limits)
  local changes = false
  for _, limit in ipairs(limits) do
    put(KEYS[8], limit[1], limit[2])
    changes = changes or not is_of_node(limit[1])
  end
  if changes then
    local revision = redis.call('GET', KEYS[3])
    redis.call('HSET', KEYS[8], LAST_CHANGE, revision)
    last_change = tonumber(revision)
  end
end

-- Whether something grows, and not on a node, that was decided on before limits were changed.
local function is_outdated(growths)
  if not seen or last_change <= seen then return false end
  for _, growth in ipairs(growths) do
    if growth[4] and not is_of_node(growth[1]) then return true end
  end
  return false
end

-- Sums are compared as they stand once the transaction has happened; what does not grow by it is not
-- refused, even above its limit. `need` is one holder's growth.
local function refuse_charges(plus, minus, growths, limits)
  if is_outdated(growths) then return {'conflict', 'the limits'} end
  local stated = {}
  for _, limit in ipairs(limits) do stated[limit[1]] = limit[2] end
  for _, growth in ipairs(growths) do
    local scope, name, more, checked = growth[1], growth[2], growth[3], growth[4]
    local field = scope .. ' ' .. name
    local taken = minus[field] or 0
    local rest = sum(field) - taken
    local limit = checked and limit_of(scope, name, plus, minus, stated) or MOST
    if plus[field] > taken and plus[field] > limit - rest then
      local need = math.min(more, MOST)
      local seen = math.min(MOST, rest + (math.min(plus[field], MOST) - need))
      return {'limit', scope, name, text(need), text(limit), text(seen)}
    end
  end
  return nil
end
