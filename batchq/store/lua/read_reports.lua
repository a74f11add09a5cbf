-- Reads a bounded part of report queues, so that this process can hold it whatever nodes write.
-- KEYS: 1 the objects of pods, then the report queues.
-- ARGV: 1 reports at most, 2 bytes of a subject or report at most, 3 bytes after which reading stops,
--       4 bytes of pods after which no more pods are read.
-- Answers: for each queue [reports left in it, subject, report, pod, subject, report, pod ...] with
--       the pod that the subject names, or '' if it does not exist or the bytes of pods are used up;
--       a longer report, or one without a subject, is removed unread and answered as
--       ['', size, '']. [-1] for a queue of another type.
local refused = refuse_size()
if refused then return refused end
local answers = {}
local reports, bytes, pods = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4])

local function pod_of(subject)
  local uid = pods > 0 and string.match(subject, '^(.+)%-%d+$')
  local pod = uid and redis.pcall('HGET', KEYS[1], uid) or ''
  if type(pod) == 'table' then pod = '' end
  pods = pods - #pod
  return pod
end

for place = 2, #KEYS do
  local queue = KEYS[place]
  local left = redis.pcall('HLEN', queue)
  if type(left) == 'table' then left = -1 end
  local found = {left}
  -- A random selection, if there are more: later calls find the others.
  local subjects = left > 0 and reports > 0 and redis.call('HRANDFIELD', queue, reports) or {}
  for _, subject in ipairs(subjects) do
    if bytes <= 0 then break end
    local size, report, pod = math.max(#subject, redis.call('HSTRLEN', queue, subject)), '', ''
    if size > tonumber(ARGV[2]) or subject == '' then
      redis.call('HDEL', queue, subject)
      subject, report = '', string.format('%.0f', size)
    else
      report, pod = redis.call('HGET', queue, subject), pod_of(subject)
      bytes = bytes - size
    end
    found[#found + 1], found[#found + 2], found[#found + 3] = subject, report, pod
    reports, left = reports - 1, left - 1
  end
  found[1] = left
  answers[place - 1] = found
end
return answers
