-- Notes that a node is alive; a node that does not exist leaves nothing behind.
-- KEYS: 1 heads of nodes, 2 beats.
-- ARGV: 1 node, 2 now in ms.
-- Answers: 1, or 0 if there is no such node.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return 1
