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
--       8 the revision of the snapshot that it was decided on, or ''.
-- Answers: JSON [revision, [answer, ...]]; an answer is [ok], [conflict | fenced | move, object],
--       [conflict, the limits], [epoch, current] or [limit, scope, resource, need, limit, seen].
--       Asked again with the same request, it answers the same and applies nothing.
local answered = redis.call('GET', KEYS[1])
if answered then return answered end
-- A server that may not write (full, read-only) says so here, before anything has been written.
redis.call('INCRBY', KEYS[3], 0)
if KEYS[4] ~= KEYS[1] then keep_in_step() end

local function falls(old, new)
  local pattern = '^(%S*) ?(%d*) ?(%d*)$'
  local uid, admission, attempt = string.match(old, pattern)
  local new_uid, new_admission, new_attempt = string.match(new, pattern)
  return uid ~= new_uid
    or (tonumber(new_admission) or 0) < (tonumber(admission) or 0)
    or (tonumber(new_attempt) or 0) < (tonumber(attempt) or 0)
end

local function refuse_write(place, kind, key, expect, fence, phase, new_fence, _, value)
  local subject = kind .. ' ' .. key
  local head = redis.call('HGET', KEYS[10 + 2 * place], key)
  if not head then
    return expect ~= '0' and {'conflict', subject} or nil
  end
  local revision, old_phase, old_fence = string.match(head, '^(%d+)|([^|]*)|([^|]*)|')
  if expect == '0' then return {'conflict', subject} end
  if fence ~= '' and fence ~= old_fence then return {'fenced', subject} end
  if expect ~= '' and expect ~= revision then return {'conflict', subject} end
  if value == '' then return nil end
  if falls(old_fence, new_fence) then return {'fenced', subject} end
  if phase ~= old_phase and not MOVES[kind .. ' ' .. old_phase .. '>' .. phase] then
    return {'move', subject}
  end
  return nil
end

local function apply_write(place, kind, key, _, _, phase, fence, stop, rest)
  local objects, heads = KEYS[9 + 2 * place], KEYS[10 + 2 * place]
  local revision, value = text(redis.call('INCR', KEYS[3])), ''
  if rest == '' then
    redis.call('HDEL', objects, key)
    redis.call('HDEL', heads, key)
  else
    value = '{"metadata":{"revision":' .. revision .. ',' .. rest
    redis.call('HSET', objects, key, value)
    redis.call('HSET', heads, key, revision .. '|' .. phase .. '|' .. fence .. '|' .. stop)
  end
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[5], revision .. '-0',
    'kind', kind, 'key', key, 'value', value)
end

local function count(field, difference)
  if redis.call('HINCRBY', KEYS[6], field, text(difference)) == 0 then
    redis.call('HDEL', KEYS[6], field)
  end
end

-- Whether nobody has led yet since the server was started: an epoch from before may have been
-- given to somebody else, in what the server has forgotten.
local function is_leaderless()
  local run = redis.call('HGET', KEYS[10], 'run')
  return run and run ~= string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
end

local leaderless = ARGV[2] ~= '' and is_leaderless()

local function transact(writes, charges, limits, deliveries, events)
  if ARGV[2] ~= '' then
    local current = redis.call('GET', KEYS[2]) or '0'
    if leaderless or ARGV[2] ~= current then return {'epoch', current} end
  end
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
  set_limits(limits)
  local revision = redis.call('GET', KEYS[3])
  for place, delivery in ipairs(deliveries) do
    redis.call('HSET', KEYS[9], delivery[1], revision .. ' ' .. place .. ' ' .. delivery[2])
  end
  for _, event in ipairs(events) do
    redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[6], '*', 'event', event)
  end
  return {'ok'}
end

local answers = {}
for _, transaction in ipairs(cjson.decode(ARGV[1])) do
  answers[#answers + 1] = transact(unpack(transaction))
end
local reply = cjson.encode({redis.call('GET', KEYS[3]), answers})
redis.call('SET', KEYS[1], reply, 'EX', ARGV[4])
return reply
