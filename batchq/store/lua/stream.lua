-- A part of commit, and of lead: the change stream never runs ahead of the count of writes.
-- KEYS: 3 revision, 4 changes, in both.
-- Answers: nothing by itself.

-- Somebody may have appended to it past batchq. Then an append would fail in the middle of a commit,
-- and of all that come after. So the count follows; where it cannot, the stream is let go, and
-- whoever reads it lists again.
local function keep_in_step()
  local told, newest = redis.pcall('XINFO', 'STREAM', KEYS[4]), nil
  if told.err then return end
  for place = 1, #told, 2 do
    if told[place] == 'last-generated-id' then newest = told[place + 1] end
  end
  local ahead = tonumber(string.match(newest, '^%d+'))
  if ahead <= tonumber(redis.call('GET', KEYS[3]) or '0') then return end
  if ahead < 2 ^ 52 then
    redis.call('SET', KEYS[3], string.format('%.0f', ahead))
  else
    redis.call('DEL', KEYS[4])
  end
end
