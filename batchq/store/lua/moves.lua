-- A part of commit: every move between phases, the pairs of batchq/api/lifecycle.py; and whether a
-- fence falls.
-- Answers: nothing by itself.
local MOVES = {
  ['PodGroup Pending>InQueue'] = true,
  ['PodGroup Pending>Failed'] = true,
  ['PodGroup Pending>Cancelled'] = true,
  ['PodGroup InQueue>Pending'] = true,
  ['PodGroup InQueue>Running'] = true,
  ['PodGroup InQueue>Completed'] = true,
  ['PodGroup InQueue>Failed'] = true,
  ['PodGroup InQueue>Cancelled'] = true,
  ['PodGroup Running>Unknown'] = true,
  ['PodGroup Running>Pending'] = true,
  ['PodGroup Running>Completed'] = true,
  ['PodGroup Running>Failed'] = true,
  ['PodGroup Running>Cancelled'] = true,
  ['PodGroup Unknown>Running'] = true,
  ['PodGroup Unknown>Pending'] = true,
  ['PodGroup Unknown>Completed'] = true,
  ['PodGroup Unknown>Failed'] = true,
  ['PodGroup Unknown>Cancelled'] = true,
  ['Pod Pending>Bound'] = true,
  ['Pod Bound>Running'] = true,
  ['Pod Bound>Failed'] = true,
  ['Pod Bound>Evicted'] = true,
  ['Pod Running>Succeeded'] = true,
  ['Pod Running>Failed'] = true,
  ['Pod Running>Evicted'] = true,
  ['Pod Failed>Pending'] = true,
  ['Pod Failed>Bound'] = true,
  ['Pod Evicted>Pending'] = true,
  ['Pod Evicted>Bound'] = true,
}

local function falls(old, new)
  if old == new then return false end
  local pattern = '^(%S*) ?(%d*) ?(%d*)$'
  local uid, admission, attempt = string.match(old, pattern)
  local new_uid, new_admission, new_attempt = string.match(new, pattern)
  return uid ~= new_uid
    or (tonumber(new_admission) or 0) < (tonumber(admission) or 0)
    or (tonumber(new_attempt) or 0) < (tonumber(attempt) or 0)
end
