-- Sets fields of the ledger, charges, limits and heads to the leader's recount, unless one of them
-- has changed since it was read.
-- KEYS: 1 epoch, 2 ledger, 3 charges, 4 limits, then the heads of each kind.
-- ARGV: 1 the leader's epoch, then for each field its place in KEYS, its name, its former value and
--       its new one, '' for none.
-- Answers: how many were set; -1 if one has changed meanwhile, or another leads.
local refused = refuse_size()
if refused then return refused end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return -1 end
for place = 2, #ARGV - 3, 4 do
  local stored = redis.call('HGET', KEYS[tonumber(ARGV[place])], ARGV[place + 1])
  if (stored or '') ~= ARGV[place + 2] then return -1 end
end
for place = 2, #ARGV - 3, 4 do
  local hash, field, value = KEYS[tonumber(ARGV[place])], ARGV[place + 1], ARGV[place + 3]
  if value == '' then redis.call('HDEL', hash, field) else redis.call('HSET', hash, field, value) end
end
return (#ARGV - 1) / 4
