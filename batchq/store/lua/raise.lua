-- Records instants in a node's own hash.
-- KEYS: 1 the node's hash.
-- ARGV: 1 seconds to keep it, then pairs of a field and an instant in ms.
-- Answers: 1.
local refused = refuse_size()
if refused then return refused end
for place = 2, #ARGV - 1, 2 do note(ARGV[place], ARGV[place + 1]) end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
