-- A part of commit: what charges do to the ledger's sums, and which limit they would pass.
-- The same rules in Python: batchq/store/rules.py.
-- KEYS: those of commit: 6 ledger, 7 charges.
-- ARGV: those of commit: 3 overcommit in thousandths, 7 the key of the limits.
-- Answers: nothing by itself.

-- No sum passes this: above it, Lua's numbers skip integers.
local MOST = 9007199254740991

local function text(number) return string.format('%.0f', number) end

-- What a holder counts for: scopes and resources in order, the amount of each resource.
local function held(record)
  local found = {scopes = {}, names = {}, units = {}, counts_in = {}}
  if not record or record == '' then return found end
  local decoded = cjson.decode(record)
  found.scopes = decoded[1]
  for _, scope in ipairs(decoded[1]) do found.counts_in[scope] = true end
  for _, amount in ipairs(decoded[2]) do
    found.names[#found.names + 1] = amount[1]
    found.units[amount[1]] = tonumber(amount[2])
  end
  return found
end

-- By '<scope> <resource>' what the charges add and take, and each growth of a holder in order.
local function weigh(charges)
  local plus, minus, growths = {}, {}, {}
  for _, charge in ipairs(charges) do
    local old, new = held(redis.call('HGET', KEYS[7], charge[1])), held(charge[2])
    for _, scope in ipairs(new.scopes) do
      for _, name in ipairs(new.names) do
        local more = new.units[name] - (old.counts_in[scope] and old.units[name] or 0)
        if more > 0 then
          local field = scope .. ' ' .. name
          plus[field] = (plus[field] or 0) + more
          growths[#growths + 1] = {scope, name, more, charge[3] == 'yes'}
        end
      end
    end
    for _, scope in ipairs(old.scopes) do
      for _, name in ipairs(old.names) do
        local less = old.units[name] - (new.counts_in[scope] and new.units[name] or 0)
        if less > 0 then
          local field = scope .. ' ' .. name
          minus[field] = (minus[field] or 0) + less
        end
      end
    end
  end
  return plus, minus, growths
end

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
  return string.sub(scope, 1, 5) == 'node:' and 0 or MOST
end

-- Sums are compared as they stand once the transaction has happened; `need` is one holder's growth.
local function refuse_charges(plus, minus, growths, limits)
  local stated = {}
  for _, limit in ipairs(limits) do stated[limit[1]] = limit[2] end
  for _, growth in ipairs(growths) do
    local scope, name, more, checked = growth[1], growth[2], growth[3], growth[4]
    local field = scope .. ' ' .. name
    local rest = sum(field) - (minus[field] or 0)
    local limit = checked and limit_of(scope, name, plus, minus, stated) or MOST
    if plus[field] > limit - rest then
      local need = math.min(more, MOST)
      local seen = math.min(MOST, rest + (math.min(plus[field], MOST) - need))
      return {'limit', scope, name, text(need), text(limit), text(seen)}
    end
  end
  return nil
end
