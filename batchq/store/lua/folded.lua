-- Takes facts that are done with out of inboxes, unless other ones have come in their place.
-- KEYS: the inboxes.
-- ARGV: of each inbox in turn how many pairs there are, then subject, fact, subject, fact ...
-- Answers: how many were taken out.
local refused = refuse_size()
if refused then return refused end
local taken, place = 0, 1
for _, inbox in ipairs(KEYS) do
  local past = math.min(place + 1 + 2 * tonumber(ARGV[place]), #ARGV + 1)
  for fact = place + 1, past - 2, 2 do
    if redis.pcall('HGET', inbox, ARGV[fact]) == ARGV[fact + 1] then
      taken = taken + redis.call('HDEL', inbox, ARGV[fact])
    end
  end
  place = past
end
return taken
