-- A part of raise and of claim: records an instant in a node's own hash. A late call does not replace
-- a later instant: after a pause, a server executes what closed connections had sent in any order.
-- KEYS: 1 the node's hash, in both.
-- Answers: nothing of its own.

-- No call is this late: the clock was set back.
local LATEST_MS = 600000
-- Fields a command: the stack of Lua is bounded.
local FIELDS = 1000

-- The fields are the arguments from `first` to `last`. They are read together and written together,
-- because each command costs more than its work.
local function note(instant, first, last)
  -- tonumber alone would accept NaN, and no instant compares as later than NaN.
  local new = tonumber(instant)
  for begin = first, last, FIELDS do
    local past = math.min(begin + FIELDS - 1, last)
    local stored, moved = redis.call('HMGET', KEYS[1], unpack(ARGV, begin, past)), {}
    for place = begin, past do
      local one = stored[place - begin + 1]
      local known = one and #one < 17 and string.match(one, '^%d+$') and tonumber(one)
      if not known or known < new or known > new + LATEST_MS then
        moved[#moved + 1], moved[#moved + 2] = ARGV[place], instant
      end
    end
    if #moved > 0 then redis.call('HSET', KEYS[1], unpack(moved)) end
  end
end
