-- A part of access, commit, discard, lead, mend and recount: keeps the count of writes in step with
-- the change stream, reports keys that batchq has not written, and appends to streams.
-- KEYS: 1 the stand-in for keys that a call does not use, 3 revision, 4 changes, in all but access,
--       lead and recount.
-- Answers: nothing of its own.

-- The count of writes stays below this; Lua's numbers skip integers above 2^53.
local MOST_WRITES = 2 ^ 52

-- Returns a number as batchq writes it, below 10^17; nil for anything else.
local function units_of(stored)
  if type(stored) ~= 'string' or #stored > 17 then return nil end
  return string.match(stored, '^%-?%d+$') and tonumber(stored)
end

-- Returns the count of writes: 0 for an absent one, nil for a malformed one.
local function count_of_writes()
  local stored = redis.pcall('GET', KEYS[3])
  if not stored then return 0 end
  local count = units_of(stored)
  return count and count >= 0 and count < MOST_WRITES and count or nil
end

-- The leader repairs this damage (mend.lua), and the caller repeats the call.
local function damaged(key) return redis.error_reply('DAMAGED ' .. key .. ' is not what batchq writes') end

-- Returns the first part of a stream's last id, from the reply of XINFO; 0 without a stream.
local function newest_in(info)
  for place = 1, #info, 2 do
    if info[place] == 'last-generated-id' then
      return tonumber(string.match(info[place + 1], '^%d+'))
    end
  end
  return 0
end

-- Returns the error to answer with if a stream cannot be written: it has another type, or its ids
-- are beyond any clock and may run out, either of which would end a call halfway.
local function damage_of_stream(key)
  local info = redis.pcall('XINFO', 'STREAM', key)
  if newest_in(info) >= MOST_WRITES then return damaged(key) end
  return info.err and string.match(tostring(info.err), 'WRONGTYPE') and damaged(key) or nil
end

-- Returns the error to answer with if one of the keys from `first` on, hashes and the stream at the
-- place `stream`, cannot be written. Hashes that `read` names have been read. It uses only commands
-- that every role may call.
local function unwritable(first, stream, read)
  for place = first, #KEYS do
    local key, wrong = KEYS[place], nil
    if key ~= KEYS[1] and place == stream then
      wrong = damage_of_stream(key)
    elseif key ~= KEYS[1] and not (read and read[key]) then
      local found = redis.pcall('HGET', key, '')
      local why = type(found) == 'table' and found.err
      wrong = why and string.match(tostring(why), 'WRONGTYPE') and damaged(key)
    end
    if wrong then return wrong end
  end
  return nil
end

-- What keep_in_step repaired: the name of the key and its former number; then the count of writes.
local repaired, was, writes

-- The count may have been set back, or entries appended, past batchq. Then each append of a commit
-- would fail, in this one and in all later ones. So the count follows; where it cannot, the stream
-- is deleted, and its readers list again. Returns the error to answer with if the count is
-- malformed.
local function keep_in_step()
  writes = count_of_writes()
  if not writes then return damaged(KEYS[3]) end
  local info = redis.pcall('XINFO', 'STREAM', KEYS[4])
  if info.err then
    return string.match(tostring(info.err), 'WRONGTYPE') and damaged(KEYS[4]) or nil
  end
  local ahead = newest_in(info)
  if ahead <= writes then return nil end
  if ahead < MOST_WRITES then
    repaired, was, writes = KEYS[3], string.format('%.0f', writes), ahead
    redis.call('SET', KEYS[3], string.format('%.0f', ahead))
  else
    repaired, was = KEYS[4], string.format('%.0f', ahead)
    redis.call('DEL', KEYS[4])
  end
  return nil
end

-- Returns, once, the fields of the next entry of the stream that tell the leader what was repaired.
local function repair_fields()
  local key = repaired
  repaired = nil
  if key then return 'repaired', key, 'was', was end
end

-- Writes the count at the end of a call. Without an entry that reports the repair of the count, it
-- is undone: the leader will repair and report it.
local function count_on(former, revision)
  if revision > former then
    redis.call('INCRBY', KEYS[3], string.format('%.0f', revision - former))
  elseif repaired == KEYS[3] then
    redis.call('SET', KEYS[3], was)
  end
end

-- Trimming a stream costs as much as an append, so only every 64th append trims. `call` is
-- redis.call or redis.pcall.
local BETWEEN_CUTS = 64
local appended = {}
local function append(call, stream, most, ...)
  local before = appended[stream] or 0
  appended[stream] = before + 1
  if before % BETWEEN_CUTS > 0 then return call('XADD', stream, ...) end
  return call('XADD', stream, 'MAXLEN', '~', most, ...)
end

-- About this many audit records are kept.
local AUDIT_KEPT = 100000
