-- A part of commit: every move between phases (the pairs of batchq/api/lifecycle.py), whether a
-- fence falls, and the reasons to refuse a write.
-- KEYS: those of commit.
-- Answers: nothing of its own.
-- A text, since each call would build a table anew.
local MOVES = [[

PodGroup Pending>InQueue
PodGroup Pending>Failed
PodGroup Pending>Cancelled
PodGroup InQueue>Pending
PodGroup InQueue>Running
PodGroup InQueue>Completed
PodGroup InQueue>Failed
PodGroup InQueue>Cancelled
PodGroup Running>Unknown
PodGroup Running>Pending
PodGroup Running>Completed
PodGroup Running>Failed
PodGroup Running>Cancelled
PodGroup Unknown>Running
PodGroup Unknown>Pending
PodGroup Unknown>Completed
PodGroup Unknown>Failed
PodGroup Unknown>Cancelled
Pod Pending>Bound
Pod Bound>Running
Pod Bound>Failed
Pod Bound>Evicted
Pod Running>Succeeded
Pod Running>Failed
Pod Running>Evicted
Pod Failed>Pending
Pod Failed>Bound
Pod Evicted>Pending
Pod Evicted>Bound
]]

local function is_move(kind, old, new)
  local move = kind .. ' ' .. old .. '>' .. new
  return not string.find(move, '\n', 1, true)
    and string.find(MOVES, '\n' .. move .. '\n', 1, true) ~= nil
end

-- Returns the uid, admission and attempt of a fence; nothing for a malformed fence. Each pattern
-- fails at its first try: a pattern with several ways to split digits takes cubic time.
local function parts_of(fence)
  local uid, rest = string.match(fence, '^(%S*) ?(.*)$')
  if rest == '' or string.match(rest, '^%d+$') then return uid, rest, '' end
  local admission, attempt = string.match(rest, '^(%d+) (%d+)$')
  if admission then return uid, admission, attempt end
end

local function falls(old, new)
  if old == new then return false end
  local uid, admission, attempt = parts_of(old)
  local new_uid, new_admission, new_attempt = parts_of(new)
  return uid ~= new_uid
    or (tonumber(new_admission) or 0) < (tonumber(admission) or 0)
    or (tonumber(new_attempt) or 0) < (tonumber(attempt) or 0)
end

local function refuse_write(place, kind, key, expect, fence, phase, new_fence, _, is_kept)
  local head = value_of(KEYS[10 + 2 * place], key)
  if not head or head == '' then
    return expect ~= '0' and {'conflict', kind .. ' ' .. key} or nil
  end
  local written, old_phase, old_fence = string.match(head, '^(%d+)|([^|]*)|([^|]*)|')
  -- Only an object that was written past batchq has the revision 0. It is replaced, or else nothing
  -- could ever change it.
  if expect == '0' and (written ~= '0' or is_kept == '') then
    return {'conflict', kind .. ' ' .. key}
  end
  if fence ~= '' and fence ~= old_fence then return {'fenced', kind .. ' ' .. key} end
  if expect ~= '' and expect ~= written then return {'conflict', kind .. ' ' .. key} end
  if is_kept == '' then return nil end
  -- A malformed head has nothing to compare with: the leader rewrites it from its object.
  if not written then return {'conflict', kind .. ' ' .. key} end
  if falls(old_fence, new_fence) then return {'fenced', kind .. ' ' .. key} end
  if phase ~= old_phase and not is_move(kind, old_phase, phase) then
    return {'move', kind .. ' ' .. key}
  end
  return nil
end
