-- Takes or renews the leader's lease. Each change of leader is a new epoch.
-- KEYS: 1 leader, 2 epoch.
-- ARGV: 1 identity, 2 now in ms, 3 when the lease shall end in ms.
-- Answers: the epoch; '' if another leads.
local identity, expires_at = unpack(redis.call('HMGET', KEYS[1], 'identity', 'expires_at'))
if identity and identity ~= ARGV[1] and tonumber(ARGV[2]) < tonumber(expires_at) then return '' end
local epoch = redis.call('GET', KEYS[2])
if identity ~= ARGV[1] then
  redis.call('INCR', KEYS[2])
  epoch = redis.call('GET', KEYS[2])
end
redis.call('HSET', KEYS[1], 'identity', ARGV[1], 'epoch', epoch, 'expires_at', ARGV[3])
return epoch
