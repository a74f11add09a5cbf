-- Deletes an unreadable record and its head, unless the record has changed since it was read. The
-- head is not compared: it may be missing or unreadable, too.
-- KEYS: 1 objects, 2 heads, 3 revision, 4 changes.
-- ARGV: 1 kind, 2 key, 3 the digest of the record (SHA-1 in hex), 4 changes kept.
-- Answers: 1, or 0 if the record is another by now.
local stored = redis.call('HGET', KEYS[1], ARGV[2])
if not stored or redis.sha1hex(stored) ~= ARGV[3] then return 0 end
local error_reply = keep_in_step()
if error_reply then return error_reply end
local revision = string.format('%.0f', redis.call('INCR', KEYS[3]))
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[4], revision .. '-0',
  'kind', ARGV[1], 'key', ARGV[2], 'value', '', repair_fields())
redis.call('HDEL', KEYS[1], ARGV[2])
redis.call('HDEL', KEYS[2], ARGV[2])
return 1
