-- Sets fields of the ledger, charges, limits, outbox and heads to what the leader found they should
-- be, unless one of them has changed since it was read, and appends the events of these repairs.
-- KEYS: 1 epoch, 2 events, 3 ledger, 4 charges, 5 limits, 6 outbox, then the heads of each kind.
-- ARGV: 1 the leader's epoch, 2 events kept, 3 the number of events, then the events, then for each
--       field its place in KEYS, its name, its former value and its new one, '' for none.
-- Answers: how many were set; -1 if one has changed meanwhile, or another leads.
local refused = refuse_size()
if refused then return refused end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return -1 end
-- An event must not fail after its repair.
refused = unwritable(2, 2)
if refused then return refused end
local first = 4 + tonumber(ARGV[3])
for place = first, #ARGV - 3, 4 do
  local stored = redis.call('HGET', KEYS[tonumber(ARGV[place])], ARGV[place + 1])
  if (stored or '') ~= ARGV[place + 2] then return -1 end
end
for place = first, #ARGV - 3, 4 do
  local hash, field, value = KEYS[tonumber(ARGV[place])], ARGV[place + 1], ARGV[place + 3]
  if value == '' then redis.call('HDEL', hash, field) else redis.call('HSET', hash, field, value) end
end
for place = 4, first - 1 do append(redis.call, KEYS[2], ARGV[2], '*', 'event', ARGV[place]) end
return (#ARGV - first + 1) / 4
