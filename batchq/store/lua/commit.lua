-- Applies transactions in order, each whole or not at all. Amounts and revisions are text.
-- KEYS: 1 request, 2 epoch, 3 revision, 4 changes, 5 events, 6 ledger, 7 charges, 8 limits,
--       9 outbox, 10 server; then the objects and the heads of each kind written. A key that a call
--       does not use is replaced by the request: a server checks the right to write every key.
-- ARGV: 1 transactions: JSON [numbers of writes, charges, limits, deliveries and events of the first,
--         their words in this order; the numbers of the second, ...], with
--           write    place (1, 2, ...) of its kind in KEYS, kind, key, expect, fence, phase, new
--                    fence, stop, and 'yes' if its value is among the values, or '' to delete it
--           charge   holder, '' or JSON [scopes, [[resource, amount], ...]], '' or 'yes' (checked)
--           limit    scope, '' or JSON {resource: amount}
--           delivery field, JSON
--           event    JSON
--       2 the leader's epoch or '', 3 overcommit in thousandths, 4 seconds to remember the answers,
--       5 changes kept, 6 events kept, 7 the key of the limits, for users who may only read them,
--       8 the revision of the snapshot behind the decision, or '',
--       9 the request of the preceding call, or '';
--       then the values of the writes, in order: the object's JSON without its start; then an audit
--       record for each transaction, or none. With them, the last two KEYS are the trail's.
-- Answers: JSON [revision, [answer, ...]]; an answer is [ok], [conflict | fenced | move, object],
--       [conflict, the limits], [epoch, current] or [limit, scope, resource, need, limit, seen].
--       A repeated request gets the same answers and applies nothing.
--       '' if the preceding call has no answers: nothing is applied.
local answered = redis.call('GET', KEYS[1])
if answered then return answered end
if ARGV[9] ~= '' and not redis.call('GET', ARGV[9]) then return '' end
local begins, firsts, audits, trail = read_words(ARGV[1])
if ARGV[2] ~= '' then ask_for(KEYS[10], 'run') end
local wrong = refuse_size() or not begins and firsts or read_asked()
  or unwritable(6, trail, hashes) or follow_changes()
if wrong then return wrong end
former, revision = writes, writes
cut_seldom()

-- Whether no leader has been elected since the server started: it may have lost writes, and a later
-- leader may have been given the same epoch in them.
local function is_leaderless()
  local run = value_of(KEYS[10], 'run')
  -- A pattern that captures it takes as long as the command.
  return run and not string.find(redis.call('INFO', 'server'), 'run_id:' .. run .. '\r\n', 1, true)
end

local function refuse_epoch()
  if ARGV[2] == '' then return nil end
  local current = redis.call('GET', KEYS[2]) or '0'
  return (ARGV[2] ~= current or is_leaderless()) and {'epoch', current} or nil
end

local outdated, ok = refuse_epoch(), {'ok'}

-- `value` is the index in ARGV of the first value written; the others are places in the words.
local function transact(value, write, charge, limit, delivery, event, past)
  for place = write, charge - 1, WRITE do
    local refused = refuse_write(unpack(words, place, place + WRITE - 1))
    if refused then return refused end
  end
  if charge < limit then
    local refused = count_charges(charge, limit, delivery)
    if refused then return refused end
  end
  local next_event = begin_to_write(event, past)
  for place = write, charge - 1, WRITE do
    apply_write(ARGV[value], unpack(words, place, place + WRITE - 1))
    if words[place + WRITE - 1] ~= '' then value = value + 1 end
  end
  if limit < delivery then set_limits(limit, delivery, revision) end
  for place = delivery, event - 1, PAIR do
    local number = (place - delivery) / PAIR + 1
    set(KEYS[9], words[place], text(revision) .. ' ' .. number .. ' ' .. words[place + 1])
  end
  for place = next_event, past - 1 do
    append(redis.call, KEYS[5], ARGV[6], '*', 'event', words[place])
  end
  return ok
end

local answers = {}
local function transact_all()
  for number, begin in ipairs(begins) do
    answers[number] = outdated or transact(firsts[number], parts_at(begin))
    if trail and answers[number] == ok then audit(ARGV[audits + number - 1], trail) end
  end
end

read_ahead(begins)
-- A malformed record ends the call: sums and count are then those of what was applied.
local went_well, why = pcall(transact_all)
if unwritable_at_all then return unwritable_at_all end
set_sums()
if digest then redis.call('HSET', KEYS[trail + 1], 'digest', digest) end
write_moved()
count_on(former, revision)
if not went_well then error(why) end
local reply = cjson.encode({text(revision), answers})
redis.call('SET', KEYS[1], reply, 'EX', ARGV[4])
return reply
