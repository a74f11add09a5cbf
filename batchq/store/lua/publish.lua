-- Publishes by which configuration the leader goes. What a former leader still sends comes too late.
-- KEYS: 1 the configuration, 2 epoch.
-- ARGV: 1 the text, 2 the leader's epoch, or '' for nobody's.
-- Answers: 'ok' or 'epoch'.
if ARGV[2] ~= '' and ARGV[2] ~= redis.call('GET', KEYS[2]) then return 'epoch' end
redis.call('SET', KEYS[1], ARGV[1])
return 'ok'
