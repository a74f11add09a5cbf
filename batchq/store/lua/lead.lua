-- Takes or renews the leader's lease. Each change of leader is a new epoch. A restarted server may
-- have lost the last epochs: it begins a new generation of them, without a leader.
-- KEYS: 1 leader, 2 epoch, 3 server.
-- ARGV: 1 identity, 2 now in ms, 3 the end of the lease in ms, 4 whether the server
--       has a run id: 'yes' or ''.
-- Answers: the epoch; '' if another leads.
-- An epoch is generation * JUMP + count, as in batchq/api/transaction.py.
local JUMP = 1000000
-- No leader's lease is longer.
local LONGEST_MS = 600000
-- Keys of another type are deleted: a leader is needed to repair all else.
for _, key in ipairs({KEYS[1], KEYS[3]}) do
  if type(redis.pcall('HGET', key, 'run')) == 'table' then redis.call('DEL', key) end
end
local stored_epoch = redis.pcall('GET', KEYS[2])
local epoch = units_of(stored_epoch or '0')
local is_lost = not epoch or epoch < 0 or epoch >= MOST_WRITES
if is_lost then epoch = 0 end

if ARGV[4] == 'yes' or is_lost then
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or ''
  local known, generation, since = unpack(redis.call('HMGET', KEYS[3], 'run', 'generation', 'since'))
  local last = units_of(generation) or 0
  if last < 0 or last >= MOST_WRITES / JUMP then generation, last = nil, 0 end
  if known ~= run or is_lost or not units_of(generation) or not units_of(since) then
    -- By the clock, since the number itself may be among the lost writes.
    generation = math.max(math.floor(ARGV[2] / 1000), last + 1)
    epoch = math.max(generation, math.floor(epoch / JUMP)) * JUMP + math.fmod(epoch, JUMP)
    redis.call('HSET', KEYS[3], 'run', run, 'since', ARGV[2],
      'generation', string.format('%.0f', generation))
    redis.call('DEL', KEYS[1])
  end
end
local identity, expires_at = unpack(redis.call('HMGET', KEYS[1], 'identity', 'expires_at'))
-- A lease that ends later than any that is granted is invalid.
local ends = units_of(expires_at) or 0
local now, own_end = tonumber(ARGV[2]), tonumber(ARGV[3])
if ends > now + math.max(LONGEST_MS, own_end - now) then ends = 0 end
if identity and identity ~= ARGV[1] and now < ends then return '' end
if identity ~= ARGV[1] then epoch = epoch + 1 end
local answer = string.format('%.0f', epoch)
redis.call('SET', KEYS[2], answer)
redis.call('HSET', KEYS[1], 'identity', ARGV[1], 'epoch', answer, 'expires_at', ARGV[3])
return answer
