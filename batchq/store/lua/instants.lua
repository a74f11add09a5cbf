-- A part of raise and of claim: records an instant in a node's own hash. A late call does not
-- replace a later instant: after a pause, a server executes what closed connections had sent in any
-- order.
-- KEYS: 1 the node's hash, in both.
-- Answers: nothing of its own.

-- No call is this late: the clock was set back.
local LATEST_MS = 600000

local function note(field, instant)
  -- tonumber alone would accept NaN, and no instant compares as later than NaN.
  local stored = redis.call('HGET', KEYS[1], field) or ''
  local known = #stored < 17 and string.match(stored, '^%d+$') and tonumber(stored)
  local new = tonumber(instant)
  if not known or known < new or known > new + LATEST_MS then
    redis.call('HSET', KEYS[1], field, instant)
  end
end
