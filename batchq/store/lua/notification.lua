-- A part of acknowledge and deliver: what a notification carries of the pods that it is about, so
-- that the agent need not read them.
-- Answers: nothing of its own.

-- The most pods in a notification, and their most bytes. It has all pods, or the agent reads them.
local MOST_CARRIED, MOST_POD_BYTES = 8, 4096

-- Returns the fields for the pods of these attempts, <pod>-<attempt>; none if they are too many or
-- too large. `pods` is the key of the objects of pods.
local function fields_of(pods, attempts)
  local fields, bytes = {}, 0
  for place, attempt in ipairs(attempts) do
    local uid = string.match(attempt, '^(.+)%-%d+$')
    local pod = uid and redis.pcall('HGET', pods, uid)
    bytes = bytes + (type(pod) == 'string' and #pod or MOST_POD_BYTES + 1)
    if place > MOST_CARRIED or bytes > MOST_POD_BYTES then return {} end
    fields[#fields + 1], fields[#fields + 2] = 'pod', pod
  end
  return fields
end

