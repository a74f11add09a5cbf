-- A part of raise and of claim: notes an instant in a node's own hash. A call that arrives late takes
-- back no later instant: what a server that stood still has kept of closed connections comes in any
-- order.
-- KEYS: 1 the node's hash, in both.
-- Answers: nothing by itself.

-- No call is so late: the clock was set back.
local LATEST_MS = 600000

local function note(field, instant)
  -- Not by tonumber alone, to which NaN is a number that nothing is later than.
  local stored = redis.call('HGET', KEYS[1], field) or ''
  local known = #stored < 17 and string.match(stored, '^%d+$') and tonumber(stored)
  local told = tonumber(instant)
  if not known or known < told or known > told + LATEST_MS then
    redis.call('HSET', KEYS[1], field, instant)
  end
end
