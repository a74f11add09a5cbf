-- Hands over the pods that a commit has bound: enqueues the deliveries of its applied transactions,
-- removes them from the outbox, and notifies their nodes. What cannot be enqueued stays there.
-- KEYS: 1 the request of the commit, 2 outbox, 3 the objects of pods; then for each node its queue and
--       its wake-up channel; then for each delivery the record of its job.
-- ARGV: 1 wake-ups kept, 2 seconds to keep a channel, 3 the wake reason, 4 seconds to keep queues and
--       records, 5 the number of nodes, 6 the number of words that all records share; then the names
--       of the nodes' queues, and these words; then for each delivery its transaction's place in the
--       commit and its node's place (1, 2, ...), its field in the outbox, the job's id, the payload.
-- Answers: how many were enqueued.

-- Jobs that a notification names, so that the agent reads them in the request that takes them.
local MOST_ANNOUNCED = 8

local refused = refuse_size()
if refused then return refused end
local answered = redis.call('GET', KEYS[1])
if not answered then return 0 end
local answers = cjson.decode(answered)[2]
local nodes, shared = tonumber(ARGV[5]), tonumber(ARGV[6])
local words = {unpack(ARGV, 7 + nodes, 6 + nodes + shared)}
local enqueued, jobs = 0, {}
for place = 7 + nodes + shared, #ARGV - 4, 5 do
  local number = (place - 7 - nodes - shared) / 5 + 1
  local transaction, node, field, id, payload = unpack(ARGV, place, place + 4)
  local answer = answers[tonumber(transaction)]
  if answer and answer[1] == 'ok' then
    node = tonumber(node)
    local record, queue = KEYS[3 + 2 * nodes + number], KEYS[2 + 2 * node]
    -- The record comes first: an id without a record would be taken for a job of unknown origin.
    local kept = redis.pcall('HSET', record, 'origin', ARGV[6 + node], 'data', payload,
      'description', id, unpack(words))
    local queued = type(kept) == 'number' and redis.pcall('RPUSH', queue, id)
    if type(queued) == 'number' then
      redis.call('EXPIRE', record, ARGV[4])
      redis.call('EXPIRE', queue, ARGV[4])
      redis.call('HDEL', KEYS[2], field)
      jobs[node] = jobs[node] or {}
      enqueued, jobs[node][#jobs[node] + 1] = enqueued + 1, id
    end
  end
end
for node, ids in pairs(jobs) do
  -- A damaged wake-up channel is ignored.
  local channel = KEYS[3 + 2 * node]
  redis.pcall('XADD', channel, 'MAXLEN', ARGV[1], '*', 'word', ARGV[3],
    'jobs', table.concat(ids, ' ', 1, math.min(#ids, MOST_ANNOUNCED)), unpack(fields_of(KEYS[3], ids)))
  redis.pcall('EXPIRE', channel, ARGV[2])
end
return enqueued
