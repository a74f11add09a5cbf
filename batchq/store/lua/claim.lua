-- Takes the leases of attempts on a node and leaves their start claims, in one step: a pod whose
-- claim is known and whose lease is not would be requeued.
-- KEYS: 1 the node's hash, 2 its report queue, 3 the wake-up channel.
-- ARGV: 1 seconds to keep the hash, 2 seconds to keep the queue, 3 wake-ups kept, about, 4 the node,
--       5 the end of the leases in ms; then the subjects of all attempts, and then their claims.
-- Answers: 1.
local refused = refuse_size()
if refused then return refused end
local count = math.floor((#ARGV - 5) / 2)
note(ARGV[5], 6, 5 + count)
for place = 6, 5 + count do redis.call('HSET', KEYS[2], ARGV[place], ARGV[place + count]) end
redis.call('EXPIRE', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[2])
-- A damaged wake-up channel is ignored: the leader also looks through all report queues.
redis.pcall('XADD', KEYS[3], 'MAXLEN', '~', ARGV[3], '*', 'node', ARGV[4])
return 1
