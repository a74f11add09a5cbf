-- Reads inboxes, a bounded part of what lies in them: whatever nodes leave there, this process can
-- hold it.
-- KEYS: the inboxes.
-- ARGV: 1 facts at most, 2 bytes of a subject or fact at most, 3 bytes after which nothing more is
--       read.
-- Answers: of each inbox [how many facts are left in it, subject, fact, subject, fact ...]; what is
--       longer was removed unread, and its place is taken by ['', size].
local answers = {}
local facts, bytes = tonumber(ARGV[1]), tonumber(ARGV[3])
for place, inbox in ipairs(KEYS) do
  local left = redis.call('HLEN', inbox)
  local found = {left}
  -- Any of them, if there are more: the next look finds others.
  local subjects = left > 0 and facts > 0 and redis.call('HRANDFIELD', inbox, facts) or {}
  for _, subject in ipairs(subjects) do
    if bytes <= 0 then break end
    local size = math.max(#subject, redis.call('HSTRLEN', inbox, subject))
    if size > tonumber(ARGV[2]) then
      redis.call('HDEL', inbox, subject)
      found[#found + 1], found[#found + 2] = '', string.format('%.0f', size)
    else
      found[#found + 1], found[#found + 2] = subject, redis.call('HGET', inbox, subject)
      bytes = bytes - size
    end
    facts, left = facts - 1, left - 1
  end
  found[1] = left
  answers[place] = found
end
return answers
