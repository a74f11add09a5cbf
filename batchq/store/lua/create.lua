-- Creates one object with a charge to one scope, as commit would, if nothing is in its way and
-- nothing that it reads is damaged. It has few commands and closures, which are most of its cost.
-- KEYS: 1 request, 2 revision, 3 changes, 4 events, 5 ledger, 6 charges, 7 the objects of its kind,
--       8 their heads.
-- ARGV: 1 kind, 2 key, 3 the object's JSON without its start, 4 its head without the revision,
--       5 event, JSON; 6 holder, 7 its charge, JSON [[scope], [[resource, amount]]], 8 scope,
--       9 resource, 10 amount, 11 seconds to remember the answer, 12 changes kept, 13 events kept,
--       14 the key of the limits, 15 the scope whose limits apply where 8 has none; then the keys of
--       objects of this kind that must not exist.
-- Answers: that of commit, or '' if commit is to decide; then nothing is applied. Each knows the
--       requests that the other has answered.
local call, try = redis.call, redis.pcall
local answered = call('GET', KEYS[1])
if answered then return answered end
-- More would not fit on the stack of Lua.
if #ARGV > 1000 then return '' end

local heads = try('HMGET', KEYS[8], ARGV[2], unpack(ARGV, 16))
if heads.err then return '' end
for place = 1, #ARGV - 14 do
  if heads[place] then return '' end
end
-- A table is an error here and below.
if try('HGET', KEYS[6], ARGV[6]) or try('HGET', KEYS[7], ARGV[2]) then return '' end

-- As batchq writes a number; of so many digits, they are added exactly, and are below every bound.
local function is_plain(number)
  if type(number) == 'table' or #number > 15 then return false end
  return number == '0' or string.find(number, '^[1-9]%d*$') ~= nil
end
local field = ARGV[8] .. ' ' .. ARGV[9]
local writes, sum = try('GET', KEYS[2]) or '0', try('HGET', KEYS[5], field) or '0'
if not is_plain(writes) or not is_plain(sum) then return '' end
local revision, total = writes + 1, sum + ARGV[10]

local limits = try('HMGET', ARGV[14], ARGV[8], ARGV[15])
if limits.err then return '' end
local limit
for place = 1, 2 do
  local record = limits[place]
  if record and not limit then
    local resource, units = string.match(record, '^{"([^"\\]+)":"(%d+)"}$')
    if resource ~= ARGV[9] or #units > 17 then return '' end
    limit = tonumber(units)
  end
end
if limit and total > limit then return '' end

-- Commit repairs a change stream that is ahead of the count of writes.
local number = string.format('%.0f', revision)
local id = number .. '-0'
if next(try('XRANGE', KEYS[3], id, '+', 'COUNT', 1)) then return '' end

-- Trimming a stream costs as much as an append.
local is_to_trim = revision % 64 == 0
local function append(stream, most, ...)
  if is_to_trim then return try('XADD', stream, 'MAXLEN', '~', most, ...) end
  return try('XADD', stream, ...)
end
-- A server that cannot write fails at the first write, before anything has been written.
if type(append(KEYS[4], ARGV[13], '*', 'event', ARGV[5])) == 'table' then return '' end
local value = '{"metadata":{"revision":' .. number .. ',' .. ARGV[3]
-- Fails only if someone has set the last id of the stream past batchq: the event stays, and commit
-- adds its own.
local change = append(KEYS[3], ARGV[12], id, 'kind', ARGV[1], 'key', ARGV[2], 'value', value)
if type(change) == 'table' then return '' end
call('HSET', KEYS[7], ARGV[2], value)
call('HSET', KEYS[8], ARGV[2], number .. '|' .. ARGV[4])
call('HSET', KEYS[6], ARGV[6], ARGV[7])
call('HSET', KEYS[5], field, string.format('%.0f', total))
call('INCRBY', KEYS[2], 1)
local reply = '["' .. number .. '",[["ok"]]]'
call('SET', KEYS[1], reply, 'EX', ARGV[11])
return reply
