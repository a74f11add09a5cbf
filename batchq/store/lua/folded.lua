-- Takes facts that are done with out of inboxes, unless other ones have come in their place.
-- KEYS: the inboxes.
-- ARGV: of each inbox in turn how many pairs there are, then subject, fact, subject, fact ...
-- Answers: how many were taken out.
local taken, place = 0, 1
for _, inbox in ipairs(KEYS) do
  local pairs_left = tonumber(ARGV[place])
  place = place + 1
  while pairs_left > 0 do
    if redis.pcall('HGET', inbox, ARGV[place]) == ARGV[place + 1] then
      taken = taken + redis.call('HDEL', inbox, ARGV[place])
    end
    place, pairs_left = place + 2, pairs_left - 1
  end
end
return taken
