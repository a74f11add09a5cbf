-- Repairs the count of writes if it is malformed, or behind the newest change or an object: it
-- continues after these or, without a change, at a number that no count has reached.
-- KEYS: 1 and 2 the epoch, 3 revision, 4 changes.
-- ARGV: 1 the leader's epoch, 2 now in ms, 3 the highest revision of an object.
-- Answers: the count; '' if another leads.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return '' end
if count_of_writes() then
  keep_in_step()
  local count = count_of_writes()
  if tonumber(ARGV[3]) > count then redis.call('SET', KEYS[3], ARGV[3]) end
  return redis.call('GET', KEYS[3])
end
local newest = redis.call('XREVRANGE', KEYS[4], '+', '-', 'COUNT', 1)[1]
local ahead = newest and tonumber(string.match(newest[1], '^%d+')) or MOST_WRITES
if ahead >= MOST_WRITES then
  ahead = tonumber(ARGV[2])
  redis.call('DEL', KEYS[4])
end
local count = string.format('%.0f', ahead)
redis.call('SET', KEYS[3], count)
return count
