-- Takes or renews the leader's lease. Each change of leader is a new epoch. A server that was started
-- anew may have forgotten the last ones: it begins a generation of them, and nobody leads yet.
-- KEYS: 1 leader, 2 epoch, 3 revision, 4 changes, 5 server.
-- ARGV: 1 identity, 2 now in ms, 3 when the lease shall end in ms, 4 whether the server
--       has a run id: 'yes' or ''.
-- Answers: the epoch; '' if another leads.
-- An epoch is generation * JUMP + count, as in batchq/api/fences.py.
local JUMP = 1000000
-- A reader that finds the stream ahead cannot read it; who leads must be able to.
keep_in_step()
local epoch = tonumber(redis.call('GET', KEYS[2]) or '0')

if ARGV[4] == 'yes' then
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  local known, last = unpack(redis.call('HMGET', KEYS[5], 'run', 'generation'))
  if known ~= run then
    -- By the clock, since the number itself may be one of the things forgotten.
    local generation = math.max(math.floor(ARGV[2] / 1000), tonumber(last or '0') + 1)
    epoch = math.max(generation, math.floor(epoch / JUMP)) * JUMP + math.fmod(epoch, JUMP)
    redis.call('HSET', KEYS[5], 'run', run, 'since', ARGV[2],
      'generation', string.format('%.0f', generation))
    redis.call('DEL', KEYS[1])
  end
end
local identity, expires_at = unpack(redis.call('HMGET', KEYS[1], 'identity', 'expires_at'))
if identity and identity ~= ARGV[1] and tonumber(ARGV[2]) < tonumber(expires_at) then return '' end
if identity ~= ARGV[1] then epoch = epoch + 1 end
local answer = string.format('%.0f', epoch)
redis.call('SET', KEYS[2], answer)
redis.call('HSET', KEYS[1], 'identity', ARGV[1], 'epoch', answer, 'expires_at', ARGV[3])
return answer
