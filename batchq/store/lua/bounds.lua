-- A part of every script that loops over its arguments: the server serves no other client while a
-- script runs, and a script that has written cannot be killed. So a call that carries more than
-- batchq ever sends is refused before it does anything.
-- Answers: nothing of its own.

local MOST_ARGUMENTS = 250000

local function too_large(what)
  return redis.error_reply('TOOLARGE ' .. what .. ' is more than one call may carry')
end

-- Returns the error to answer with; nil for a call of ordinary size.
local function refuse_size()
  if #KEYS + #ARGV <= MOST_ARGUMENTS then return nil end
  return too_large(string.format('%.0f keys and arguments', #KEYS + #ARGV))
end
