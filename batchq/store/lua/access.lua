-- Changes tokens or bindings, and appends the audit record of that change, in one step. Without a
-- change it appends the record alone.
-- KEYS: 1 tokens or bindings, 2 the state of both, 3 the audit trail.
-- ARGV: 1 the digest of the last audit record, as the caller knows it,
--       2 the audit record, 3 its digest, 4 the caller's name for this change,
--       5 and, in threes from here on: the field, 5 its value as the caller knows it or '',
--       6 its new value, or '' to delete it.
-- Answers: 'ok' (also if the call was answered before), 'digest' if another record came first,
--          'changed' if a field has another value.
local refused = refuse_size()
if refused then return refused end
-- A key of another type, or a trail without ids left, would end the call halfway.
local trail = redis.pcall('XINFO', 'STREAM', KEYS[3])
if newest_in(trail) >= MOST_WRITES then return damaged(KEYS[3]) end
local read = {redis.pcall('HGET', KEYS[1], ''), redis.pcall('HGET', KEYS[2], ''), trail}
for place = 1, 3 do
  local why = type(read[place]) == 'table' and read[place].err
  if why and string.match(tostring(why), 'WRONGTYPE') then return damaged(KEYS[place]) end
end
local last = redis.call('HGET', KEYS[2], 'digest') or ''
-- A caller cannot state a malformed digest; a reader of the trail learns that it is broken.
if string.find(last, '[^0-9a-f]') then last = '' end
-- Not by the record: two changes in one millisecond may have equal ones.
if redis.call('HGET', KEYS[2], 'call') == ARGV[4] then return 'ok' end
if last ~= ARGV[1] then return 'digest' end
for place = 5, #ARGV, 3 do
  if (redis.call('HGET', KEYS[1], ARGV[place]) or '') ~= ARGV[place + 1] then return 'changed' end
end
for place = 5, #ARGV, 3 do
  if ARGV[place + 2] == '' then
    redis.call('HDEL', KEYS[1], ARGV[place])
  else
    redis.call('HSET', KEYS[1], ARGV[place], ARGV[place + 2])
  end
end
if #ARGV > 4 then
  -- Readers only compare it with what they read last.
  local revision = tonumber(redis.call('HGET', KEYS[2], 'revision') or '0')
  if not revision or not (revision >= 0 and revision < MOST_WRITES) then revision = 0 end
  redis.call('HSET', KEYS[2], 'revision', string.format('%.0f', math.floor(revision) + 1))
end
redis.call('HSET', KEYS[2], 'digest', ARGV[3], 'call', ARGV[4])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', AUDIT_KEPT, '*', 'record', ARGV[2], 'digest', ARGV[3])
return 'ok'
