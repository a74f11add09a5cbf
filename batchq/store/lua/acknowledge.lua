-- Removes the node reports whose transactions a commit has applied, except those that a newer
-- report has replaced, and notifies the nodes that wait for their acknowledgement.
-- KEYS: 1 the request of the commit, 2 the objects of pods, then for each node its report queue and
--       its wake-up channel.
-- ARGV: 1 wake-ups kept, 2 seconds to keep a channel, 3 the wake reason; then for each node
--       the number of reports, then for each its transaction's place in the commit (1, 2, ...),
--       subject, report, and 'yes' if its node is to be notified or ''.
-- Answers: how many were removed.
local refused = refuse_size()
if refused then return refused end
local answered = redis.call('GET', KEYS[1])
if not answered then return 0 end
local answers = cjson.decode(answered)[2]
local taken, place = 0, 4
for node = 3, #KEYS, 2 do
  local last = math.min(place + 4 * tonumber(ARGV[place]), #ARGV)
  local claims = {}
  for report = place + 1, last - 3, 4 do
    local answer = answers[tonumber(ARGV[report])]
    if answer and answer[1] == 'ok' then
      if redis.pcall('HGET', KEYS[node], ARGV[report + 1]) == ARGV[report + 2] then
        taken = taken + redis.call('HDEL', KEYS[node], ARGV[report + 1])
      end
      if ARGV[report + 3] ~= '' then claims[#claims + 1] = ARGV[report + 1] end
    end
  end
  -- A damaged wake-up channel is ignored.
  if #claims > 0 then
    redis.pcall('XADD', KEYS[node + 1], 'MAXLEN', ARGV[1], '*', 'word', ARGV[3],
      unpack(fields_of(KEYS[2], claims)))
    redis.pcall('EXPIRE', KEYS[node + 1], ARGV[2])
  end
  place = last + 1
end
return taken
