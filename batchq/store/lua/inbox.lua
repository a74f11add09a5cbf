-- Reads inboxes, a bounded part of each: whatever a node leaves there, this process can hold it.
-- KEYS: the inboxes.
-- ARGV: 1 facts of each inbox at most, 2 bytes of a subject or fact at most.
-- Answers: of each inbox [subject, fact, subject, fact ...]; what is longer was removed unread, and
--       its place is taken by ['', size].
local answers = {}
for place, inbox in ipairs(KEYS) do
  local found = {}
  -- Any of them, if there are more: the next look finds others.
  for _, subject in ipairs(redis.call('HRANDFIELD', inbox, ARGV[1])) do
    local size = math.max(#subject, redis.call('HSTRLEN', inbox, subject))
    if size > tonumber(ARGV[2]) then
      redis.call('HDEL', inbox, subject)
      found[#found + 1], found[#found + 2] = '', string.format('%.0f', size)
    else
      found[#found + 1], found[#found + 2] = subject, redis.call('HGET', inbox, subject)
    end
  end
  answers[place] = found
end
return answers
