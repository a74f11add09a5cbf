-- Applies transactions in order, each whole or not at all. Everything is text, numbers too.
-- KEYS: 1 request, 2 epoch, 3 revision, 4 changes, 5 events, 6 ledger, 7 charges, 8 limits,
--       9 outbox, 10 server; then of each kind that is written its objects and its heads. What a
--       call has no use for is the request again: a server asks for the right to write every key.
-- ARGV: 1 transactions: JSON [[writes, charges, limits, deliveries, events], ...] with
--           write    [place of its kind in KEYS, kind, key, expect, fence, phase, new fence, stop, value]
--                    value: the object's JSON without its start, or '' to delete it
--           charge   [holder, '' or JSON [scopes, [[resource, amount], ...]], '' or 'yes' (checked)]
--           limit    [scope, '' or JSON {resource: amount}]
--           delivery [field, JSON]
--           event    JSON
--       2 the leader's epoch or '', 3 overcommit in thousandths, 4 seconds to remember the answers,
--       5 changes kept, 6 events kept, 7 the key of the limits, for those who may only read them,
--       8 the revision of the snapshot that it was decided on, or '',
--       9 the request of the call that comes before this one, or ''.
-- Answers: JSON [revision, [answer, ...]]; an answer is [ok], [conflict | fenced | move, object],
--       [conflict, the limits], [epoch, current] or [limit, scope, resource, need, limit, seen].
--       Asked again with the same request, it answers the same and applies nothing.
--       '' if the call that comes before was not answered: then nothing is applied.
local answered = redis.call('GET', KEYS[1])
if answered then return answered end
if ARGV[9] ~= '' and not redis.call('GET', ARGV[9]) then return '' end
-- A server that may not write (full, read-only) says so here, before anything has been written.
redis.call('INCRBY', KEYS[3], 0)
if KEYS[4] ~= KEYS[1] then keep_in_step() end

-- Counted here, and written at the end, as the ledger's sums are.
local former = tonumber(redis.call('GET', KEYS[3]))
local revision = former

local function refuse_write(place, kind, key, expect, fence, phase, new_fence, _, value)
  local head = redis.call('HGET', KEYS[10 + 2 * place], key)
  if not head then
    return expect ~= '0' and {'conflict', kind .. ' ' .. key} or nil
  end
  local written, old_phase, old_fence = string.match(head, '^(%d+)|([^|]*)|([^|]*)|')
  if expect == '0' then return {'conflict', kind .. ' ' .. key} end
  if fence ~= '' and fence ~= old_fence then return {'fenced', kind .. ' ' .. key} end
  if expect ~= '' and expect ~= written then return {'conflict', kind .. ' ' .. key} end
  if value == '' then return nil end
  if falls(old_fence, new_fence) then return {'fenced', kind .. ' ' .. key} end
  if phase ~= old_phase and not MOVES[kind .. ' ' .. old_phase .. '>' .. phase] then
    return {'move', kind .. ' ' .. key}
  end
  return nil
end

local function apply_write(place, kind, key, _, _, phase, fence, stop, rest)
  local objects, heads = KEYS[9 + 2 * place], KEYS[10 + 2 * place]
  revision = revision + 1
  local number, value = text(revision), ''
  if rest == '' then
    redis.call('HDEL', objects, key)
    redis.call('HDEL', heads, key)
  else
    value = '{"metadata":{"revision":' .. number .. ',' .. rest
    redis.call('HSET', objects, key, value)
    redis.call('HSET', heads, key, number .. '|' .. phase .. '|' .. fence .. '|' .. stop)
  end
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[5], number .. '-0',
    'kind', kind, 'key', key, 'value', value)
end

-- Whether nobody has led yet since the server was started: an epoch from before may have been
-- given to somebody else, in what the server has forgotten.
local function is_leaderless()
  local run = redis.call('HGET', KEYS[10], 'run')
  return run and run ~= string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
end

local function refuse_epoch()
  if ARGV[2] == '' then return nil end
  local current = redis.call('GET', KEYS[2]) or '0'
  return (ARGV[2] ~= current or is_leaderless()) and {'epoch', current} or nil
end

local outdated, ok = refuse_epoch(), {'ok'}

local function transact(writes, charges, limits, deliveries, events)
  if outdated then return outdated end
  for _, write in ipairs(writes) do
    local refused = refuse_write(unpack(write))
    if refused then return refused end
  end
  local plus, minus, growths = weigh(charges)
  local refused = refuse_charges(plus, minus, growths, limits)
  if refused then return refused end
  for _, write in ipairs(writes) do apply_write(unpack(write)) end
  for field, units in pairs(minus) do count(field, -units) end
  for field, units in pairs(plus) do count(field, units) end
  for _, charge in ipairs(charges) do put(KEYS[7], charge[1], charge[2]) end
  if #limits > 0 then set_limits(limits, revision) end
  for place, delivery in ipairs(deliveries) do
    redis.call('HSET', KEYS[9], delivery[1], text(revision) .. ' ' .. place .. ' ' .. delivery[2])
  end
  for _, event in ipairs(events) do
    redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[6], '*', 'event', event)
  end
  return ok
end

local answers = {}
local function transact_all()
  for _, transaction in ipairs(cjson.decode(ARGV[1])) do
    answers[#answers + 1] = transact(unpack(transaction))
  end
end

-- A record that somebody has spoiled ends the call: sums and count are those of what was applied.
local went_well, why = pcall(transact_all)
write_sums()
if revision > former then redis.call('INCRBY', KEYS[3], text(revision - former)) end
if not went_well then error(why) end
local reply = cjson.encode({text(revision), answers})
redis.call('SET', KEYS[1], reply, 'EX', ARGV[4])
return reply
