-- Appends output of a pod's attempt, and keeps the newest of all its output.
-- KEYS: 1 log.
-- ARGV: 1 request, 2 stream, 3 data, 4 bytes kept, 5 seconds kept, 6 pieces kept, about.
-- Answers: 1, or 0 if this request has been appended already.
-- Each entry holds the length of all output up to it, so the log's size is one subtraction.
local length = 0
for place, entry in ipairs(redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 16)) do
  -- Fields in the order in which they were added: request, stream, data, length.
  if entry[2][2] == ARGV[1] then return 0 end
  if place == 1 then length = tonumber(entry[2][8]) or 0 end
end
length = length + #ARGV[3]
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[6], '*', 'request', ARGV[1], 'stream', ARGV[2],
  'data', ARGV[3], 'length', string.format('%.0f', length))
-- Later calls remove what is left after this many pages.
local PAGES, ENTRIES = 100, 100
for _ = 1, PAGES do
  local old = {}
  for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', ENTRIES)) do
    if length - (tonumber(entry[2][8]) or 0) <= tonumber(ARGV[4]) then break end
    old[#old + 1] = entry[1]
  end
  if #old > 0 then redis.call('XDEL', KEYS[1], unpack(old)) end
  if #old < ENTRIES then break end
end
redis.call('EXPIRE', KEYS[1], ARGV[5])
return 1
