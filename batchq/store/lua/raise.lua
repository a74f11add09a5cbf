-- Notes instants in a node's own hash. A call that arrives late takes back no later instant: what a
-- server that stood still has kept of closed connections comes in any order.
-- KEYS: 1 the node's hash.
-- ARGV: 1 seconds to keep it, then pairs of a field and an instant in ms.
-- Answers: 1.
-- No call is so late: the clock was set back.
local LATEST_MS = 600000
for place = 2, #ARGV, 2 do
  -- Not by tonumber alone, to which NaN is a number that nothing is later than.
  local stored = redis.call('HGET', KEYS[1], ARGV[place]) or ''
  local known = string.match(stored, '^%d+$') and tonumber(stored)
  local told = tonumber(ARGV[place + 1])
  if not known or known < told or known > told + LATEST_MS then
    redis.call('HSET', KEYS[1], ARGV[place], ARGV[place + 1])
  end
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
