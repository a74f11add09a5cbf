-- A part of commit, of discard and of lead: the change stream never runs ahead of the count of writes;
-- and what there is to say when a key that a script needs is none of batchq's.
-- KEYS: 1 what stands for keys that a call has no use for, 3 revision, 4 changes, in all of them.
-- Answers: nothing by itself.

-- No count of writes is larger. What Lua's numbers cannot tell apart is above it.
local MOST_WRITES = 2 ^ 52

-- A number as batchq writes it, below 10^17; nil for anything else that somebody has left there.
local function units_of(stored)
  if type(stored) ~= 'string' or #stored > 17 then return nil end
  return string.match(stored, '^%-?%d+$') and tonumber(stored)
end

-- The count of writes: 0 where there is none, nil where it is no count.
local function count_of_writes()
  local stored = redis.pcall('GET', KEYS[3])
  if not stored then return 0 end
  local count = units_of(stored)
  return count and count >= 0 and count < MOST_WRITES and count or nil
end

-- Whoever leads mends what is damaged so (mend.lua), and the call is made again.
local function damaged(key) return redis.error_reply('DAMAGED ' .. key .. ' is not what batchq writes') end

-- The first part of the id that a stream has come to, from what XINFO told; 0 if there is no stream.
local function newest_in(told)
  for place = 1, #told, 2 do
    if told[place] == 'last-generated-id' then
      return tonumber(string.match(told[place + 1], '^%d+'))
    end
  end
  return 0
end

-- The error to answer with if one of the keys from a place on, a stream and then hashes, cannot be
-- written: it is of another type, or the ids of the stream are ones that no clock comes to, and so may
-- come to their end. That would end a call in its middle. Only with what every role may do.
local function unwritable(first)
  for place = first, #KEYS do
    local key, told = KEYS[place], nil
    if key ~= KEYS[1] and place == first then
      told = redis.pcall('XINFO', 'STREAM', key)
      if newest_in(told) >= MOST_WRITES then return damaged(key) end
    elseif key ~= KEYS[1] then
      told = redis.pcall('HGET', key, '')
    end
    local why = type(told) == 'table' and told.err
    if why and string.match(tostring(why), 'WRONGTYPE') then return damaged(key) end
  end
  return nil
end

-- Somebody may have appended to it past batchq. Then an append would fail in the middle of a commit,
-- and of all that come after. So the count follows; where it cannot, the stream is let go, and
-- whoever reads it lists again. An error to answer with, if there is nothing to go on by.
local function keep_in_step()
  local count = count_of_writes()
  if not count then return damaged(KEYS[3]) end
  local told = redis.pcall('XINFO', 'STREAM', KEYS[4])
  if told.err then
    return string.match(tostring(told.err), 'WRONGTYPE') and damaged(KEYS[4]) or nil
  end
  local ahead = newest_in(told)
  if ahead <= count then return nil end
  if ahead < MOST_WRITES then
    redis.call('SET', KEYS[3], string.format('%.0f', ahead))
  else
    redis.call('DEL', KEYS[4])
  end
  return nil
end
