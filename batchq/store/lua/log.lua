-- Appends output of a pod's attempt; of all its output the newest is kept.
-- KEYS: 1 log.
-- ARGV: 1 request, 2 stream, 3 data, 4 bytes kept, 5 seconds kept, 6 pieces kept, about.
-- Answers: 1, or 0 if this request has been appended already.
-- Each entry knows how much came before it, so the log's size is one subtraction.
local length = 0
for place, entry in ipairs(redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 16)) do
  -- Fields in the order in which they were added: request, stream, data, length.
  if entry[2][2] == ARGV[1] then return 0 end
  if place == 1 then length = tonumber(entry[2][8]) end
end
length = length + #ARGV[3]
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[6], '*', 'request', ARGV[1], 'stream', ARGV[2],
  'data', ARGV[3], 'length', string.format('%.0f', length))
local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
while length - tonumber(oldest[2][8]) > tonumber(ARGV[4]) do
  redis.call('XDEL', KEYS[1], oldest[1])
  oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
end
redis.call('EXPIRE', KEYS[1], ARGV[5])
return 1
