-- Deletes keys that batchq cannot have written, and repairs the count of writes if it is malformed,
-- or behind the newest change or an object: it continues after these or, without a change, at a
-- number that no count has reached. Each repair appends its event. A key that is in order by now,
-- because it was repaired since it was seen, is left alone.
-- KEYS: 1 and 2 the epoch, 3 revision, 4 changes, 5 events, then the damaged keys: the event stream
--       first and the count of writes last, if they are among them.
-- ARGV: 1 the leader's epoch, 2 now in ms, 3 the highest revision of an object, 4 events kept, then
--       for each damaged key the type it should have ('counts': a hash of counters), the most
--       fields it may have or '', and the event of its repair or ''.
-- Answers: the numbers of the keys that were repaired, from 1; none if another leads.
local refused = refuse_size()
if refused then return refused end
-- An epoch of another type belongs to no leader; `lead` begins a new one.
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return {} end
local FIRST_KEY, FIRST_ARGUMENT, ARGUMENTS_A_KEY = 6, 5, 3

local function is_counter(stored)
  local count = units_of(stored)
  return count and count >= 0 and count < MOST_WRITES
end

-- It uses no command, such as TYPE, that the users of older schedulers may not call.
local READS = {string = {'GET'}, stream = {'XINFO', 'STREAM'}, hash = {'HLEN'}, counts = {'HGETALL'}}
local function is_damaged(key, kind, most)
  local command, part = unpack(READS[kind])
  local found = part and redis.pcall(command, part, key) or redis.pcall(command, key)
  if type(found) == 'table' and found.err then
    return string.match(tostring(found.err), 'WRONGTYPE') ~= nil
  end
  if kind == 'stream' then return newest_in(found) >= MOST_WRITES end
  if kind == 'hash' then return most ~= '' and found > tonumber(most) end
  if kind == 'counts' then
    for place = 2, #found, 2 do
      if not is_counter(found[place]) then return true end
    end
  end
  return false
end

-- Returns whether the count was wrong.
local function mend_count()
  local before = redis.pcall('GET', KEYS[3])
  if count_of_writes() then
    keep_in_step()
  else
    local newest = redis.call('XREVRANGE', KEYS[4], '+', '-', 'COUNT', 1)[1]
    local ahead = newest and tonumber(string.match(newest[1], '^%d+')) or MOST_WRITES
    if ahead >= MOST_WRITES then
      ahead = tonumber(ARGV[2])
      redis.call('DEL', KEYS[4])
    end
    redis.call('SET', KEYS[3], string.format('%.0f', ahead))
  end
  -- Not at the next look only: writes until then would repeat the revisions of other objects.
  if tonumber(ARGV[3]) > count_of_writes() then redis.call('SET', KEYS[3], ARGV[3]) end
  return redis.call('GET', KEYS[3]) ~= before
end

local function mend(key, kind, most)
  if key == KEYS[3] then return mend_count() end
  return is_damaged(key, kind, most) and redis.call('DEL', key) > 0
end

-- An event must not fail after its repair.
if KEYS[FIRST_KEY] ~= KEYS[5] and is_damaged(KEYS[5], 'stream') then return damaged(KEYS[5]) end
local numbers = {}
for place = FIRST_KEY, #KEYS do
  local number = place - FIRST_KEY + 1
  local kind, most, event = unpack(ARGV, FIRST_ARGUMENT + (number - 1) * ARGUMENTS_A_KEY,
    FIRST_ARGUMENT + number * ARGUMENTS_A_KEY - 1)
  if mend(KEYS[place], kind, most) then
    numbers[#numbers + 1] = number
    if event ~= '' then append(redis.call, KEYS[5], ARGV[4], '*', 'event', event) end
  end
end
return numbers
