-- Records that a scheduler is alive, and forgets schedulers that have been silent too long and
-- malformed entries.
-- KEYS: 1 schedulers.
-- ARGV: 1 identity, 2 now in ms, 3 its mirror's revision or -, and its version,
--       4 after how many seconds a silent scheduler is forgotten.
-- Answers: the number of known schedulers.
local kept_ms = tonumber(ARGV[4]) * 1000
local oldest, latest = tonumber(ARGV[2]) - kept_ms, tonumber(ARGV[2]) + kept_ms
-- A deployment has a handful of schedulers: more entries than this were written past batchq.
if redis.call('HLEN', KEYS[1]) > 1000 then redis.call('DEL', KEYS[1]) end
local entries = redis.call('HGETALL', KEYS[1])
for place = 1, #entries, 2 do
  local seen_at = tonumber(string.match(entries[place + 1], '^%d+') or '0')
  if seen_at < oldest or seen_at > latest then redis.call('HDEL', KEYS[1], entries[place]) end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
return redis.call('HLEN', KEYS[1])
