-- Publishes the leader's configuration. A former leader's call is refused.
-- KEYS: 1 the configuration, 2 epoch.
-- ARGV: 1 the text, 2 the leader's epoch, or '' to publish without one.
-- Answers: 'ok' or 'epoch'.
if ARGV[2] ~= '' and ARGV[2] ~= redis.call('GET', KEYS[2]) then return 'epoch' end
redis.call('SET', KEYS[1], ARGV[1])
return 'ok'
