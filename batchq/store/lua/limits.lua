-- A part of commit: checks charges against limits, and that the limits are those decided by.
-- The same rules in Python: batchq/store/rules.py.
-- KEYS: those of commit: 8 limits.
-- ARGV: those of commit: 3 overcommit in thousandths.
-- Answers: nothing of its own.

-- No sum passes this: above it, Lua's numbers skip integers.
local MOST = 9007199254740991

local NONE = {}

-- Nodes' limits are no policy: each sum is checked against its limit here, and no decision weighs
-- several of them together.
local function is_of_node(scope) return string.sub(scope, 1, 5) == 'node:' end

-- Limits by ledger field, once they are known.
local limits = {}

-- Exact up to 2^53: a quotient that is no integer is too far from the next integer to round to it.
local function thousandth(number) return math.floor(number / 1000) end

local function find_limit(scope, name, plus, minus, stated)
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

-- `stated`: nil if the transaction states no limits.
local function limit_of(field, scope, name, plus, minus, stated)
  if limits[field] and not stated then return limits[field] end
  local limit = find_limit(scope, name, plus, minus, stated or NONE)
  -- That of the cluster depends on sums; a malformed record counts against each transaction.
  if scope ~= 'cluster' and not stated and not is_record_malformed then limits[field] = limit end
  return limit
end

-- The record '' removes the limit.
local function set_limit(scope, record)
  if record == '' then redis.call('HDEL', KEYS[8], scope) else redis.call('HSET', KEYS[8], scope, record) end
  stored[scope], limits = record, {}
end

-- Runs after the writes: their revision is the one at which the limits change. The limits are the
-- words from `first` to before `past`.
local function set_limits(first, past, revision)
  for place = first, past - 1, PAIR do
    set_limit(words[place], words[place + 1])
    if not is_of_node(words[place]) then set_limit(LAST_CHANGE, text(revision)) end
  end
end

-- Whether limits have changed since the snapshot behind the decision.
local function have_changed()
  if not seen then return false end
  local last_change = units_of(record_of(LAST_CHANGE) or '0')
  if not last_change then is_record_malformed = true end
  return (last_change or 0) > seen
end

-- Whether a checked charge grows elsewhere than on a node, after limits have changed.
local function is_outdated(growths)
  if not have_changed() then return false end
  for place = 1, #growths, GROWTH do
    if growths[place + 4] and not is_of_node(growths[place]) then return true end
  end
  return false
end

-- Compares sums as they will stand after the transaction; a sum that does not grow is not refused,
-- even above its limit. `need` is one holder's growth.
local function refuse_charges(plus, minus, growths, first_limit, past)
  if is_outdated(growths) then return {'conflict', 'the limits'} end
  local stated = first_limit < past and {} or nil
  for place = first_limit, past - 1, PAIR do stated[words[place]] = words[place + 1] end
  for place = 1, #growths, GROWTH do
    local scope, name, field, more, checked = unpack(growths, place, place + GROWTH - 1)
    local taken, added = minus[field] or 0, plus[field]
    local rest = sums[field] - taken
    local limit = checked and limit_of(field, scope, name, plus, minus, stated) or MOST
    if added > taken and added > limit - rest then
      local need = math.min(more, MOST)
      local found = math.min(MOST, rest + (math.min(added, MOST) - need))
      return {'limit', scope, name, text(need), text(limit), text(found)}
    end
  end
  return nil
end
