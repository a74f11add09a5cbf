-- A part of every script that loops over what a call carries: nobody else is served while a script
-- runs, and once it has written nobody can stop it. So a call that carries more than batchq ever
-- sends at once is refused before anything is done.
-- Answers: nothing by itself.

local MOST_ARGUMENTS = 250000

local function too_large(what)
  return redis.error_reply('TOOLARGE ' .. what .. ' is more than one call may carry')
end

-- The error to answer with; nil for a call of ordinary size.
local function refuse_size()
  if #KEYS + #ARGV <= MOST_ARGUMENTS then return nil end
  return too_large(string.format('%.0f keys and arguments', #KEYS + #ARGV))
end
