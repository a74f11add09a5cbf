-- Removes applied node reports from report queues, except those that a newer report has replaced.
-- KEYS: the report queues.
-- ARGV: for each queue in turn the number of pairs, then subject, report, subject, report ...
-- Answers: how many were removed.
local refused = refuse_size()
if refused then return refused end
local taken, place = 0, 1
for _, queue in ipairs(KEYS) do
  local past = math.min(place + 1 + 2 * tonumber(ARGV[place]), #ARGV + 1)
  for report = place + 1, past - 2, 2 do
    if redis.pcall('HGET', queue, ARGV[report]) == ARGV[report + 1] then
      taken = taken + redis.call('HDEL', queue, ARGV[report])
    end
  end
  place = past
end
return taken
