-- Gives up the leader's lease, if it is still held. The epoch stays until the next leader.
-- KEYS: 1 leader.
-- ARGV: 1 identity.
-- Answers: 1 if it was held, 0 if another leads.
if redis.call('HGET', KEYS[1], 'identity') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
