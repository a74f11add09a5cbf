-- A part of commit, of discard and of lead: keeps the change stream from running ahead of the count
-- of writes, and reports keys that batchq has not written.
-- KEYS: 1 the stand-in for keys that a call does not use, 3 revision, 4 changes, in all of them.
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

-- Returns the error to answer with if one of the keys from `first` on, a stream and then hashes,
-- cannot be written: it has another type, or the stream's ids are beyond any clock and may run out,
-- either of which would end a call halfway. It uses only commands that every role may call.
local function unwritable(first)
  for place = first, #KEYS do
    local key, info = KEYS[place], nil
    if key ~= KEYS[1] and place == first then
      info = redis.pcall('XINFO', 'STREAM', key)
      if newest_in(info) >= MOST_WRITES then return damaged(key) end
    elseif key ~= KEYS[1] then
      info = redis.pcall('HGET', key, '')
    end
    local why = type(info) == 'table' and info.err
    if why and string.match(tostring(why), 'WRONGTYPE') then return damaged(key) end
  end
  return nil
end

-- Entries may have been appended past batchq. Then each append of a commit would fail, in this one
-- and in all later ones. So the count follows; where it cannot, the stream is deleted, and its
-- readers list again. Returns the error to answer with if the count is malformed.
local function keep_in_step()
  local count = count_of_writes()
  if not count then return damaged(KEYS[3]) end
  local info = redis.pcall('XINFO', 'STREAM', KEYS[4])
  if info.err then
    return string.match(tostring(info.err), 'WRONGTYPE') and damaged(KEYS[4]) or nil
  end
  local ahead = newest_in(info)
  if ahead <= count then return nil end
  if ahead < MOST_WRITES then
    redis.call('SET', KEYS[3], string.format('%.0f', ahead))
  else
    redis.call('DEL', KEYS[4])
  end
  return nil
end
