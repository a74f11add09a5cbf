-- Notes that a scheduler is there, and forgets those that have been silent for long, or are none.
-- KEYS: 1 schedulers.
-- ARGV: 1 identity, 2 now in ms, 3 the revision that its mirror is at, or -, and its version,
--       4 after how many seconds a silent one is forgotten.
-- Answers: how many schedulers there are.
local kept_ms = tonumber(ARGV[4]) * 1000
local oldest, latest = tonumber(ARGV[2]) - kept_ms, tonumber(ARGV[2]) + kept_ms
-- There are a few, ever: so many others have been put there past batchq.
if redis.call('HLEN', KEYS[1]) > 1000 then redis.call('DEL', KEYS[1]) end
local entries = redis.call('HGETALL', KEYS[1])
for place = 1, #entries, 2 do
  local seen_at = tonumber(string.match(entries[place + 1], '^%d+') or '0')
  if seen_at < oldest or seen_at > latest then redis.call('HDEL', KEYS[1], entries[place]) end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
return redis.call('HLEN', KEYS[1])
