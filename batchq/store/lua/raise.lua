-- Records an instant in a node's own hash.
-- KEYS: 1 the node's hash.
-- ARGV: 1 seconds to keep it, 2 the instant in ms, then the fields to record it under.
-- Answers: 1.
local refused = refuse_size()
if refused then return refused end
note(ARGV[2], 3, #ARGV)
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
