-- A part of commit: writes objects, and appends changes, events and audit records.
-- KEYS: those of commit: 3 revision, 4 changes, 5 events, 9 and up.
-- ARGV: those of commit: 5 changes kept, 6 events kept.
-- Answers: nothing of its own.

-- Counted here and written at the end, like the ledger's sums.
local former, revision

-- As keep_in_step, and first without the two whole entries in the reply of XINFO. That overlooks a
-- stream whose last id belongs to no entry: then the first append fails, after limits may have been
-- set, so that their revision would be too low.
local function follow_changes()
  writes = count_of_writes()
  if not writes then return damaged(KEYS[3]) end
  if KEYS[8] == KEYS[1] then
    local ahead = redis.pcall('XRANGE', KEYS[4], text(writes + 1), '+', 'COUNT', 1)
    if not ahead.err and not ahead[1] then return nil end
  end
  -- A repair must not fail after it.
  return KEYS[5] ~= KEYS[1] and damage_of_stream(KEYS[5]) or keep_in_step()
end

-- Calls that pass no multiple of this many writes do not trim; those without writes do.
local function cut_seldom()
  if planned > 0 and former % BETWEEN_CUTS + planned < BETWEEN_CUTS then
    appended[KEYS[4]], appended[KEYS[5]] = 1, 1
  end
end

local is_in_step = false

-- Returns false after a first append that failed: the count has followed the stream by then, and
-- the caller repeats the call. A server that refuses writes fails at the second.
local function append_change(...)
  if is_in_step then
    append(redis.call, KEYS[4], ARGV[5], ...)
    return true
  end
  is_in_step = true
  if type(append(redis.pcall, KEYS[4], ARGV[5], ...)) ~= 'table' then return true end
  keep_in_step()
  former, revision = writes, writes
  return false
end

local function apply_write(rest, place, kind, key, expect, _, phase, fence, stop, is_kept)
  -- Deleting an object that must not exist is a condition, and writes nothing.
  if expect == '0' and is_kept == '' then return end
  revision = revision + 1
  local number, head, value = text(revision), '', ''
  if is_kept ~= '' then
    head = number .. '|' .. phase .. '|' .. fence .. '|' .. stop
    value = '{"metadata":{"revision":' .. number .. ',' .. rest
  end
  local is_done = append_change(number .. '-0', 'kind', kind, 'key', key, 'value', value,
    repair_fields())
  if not is_done then
    return apply_write(rest, place, kind, key, expect, _, phase, fence, stop, is_kept)
  end
  set(KEYS[9 + 2 * place], key, value)
  set(KEYS[10 + 2 * place], key, head)
end

-- The error to answer with: nothing has been written.
local unwritable_at_all
local is_writable = false

-- Makes sure, before a transaction is applied, that the whole call can be: that the server accepts
-- writes, and that the event stream is what batchq writes. Its events are the words from `event` to
-- before `past`. Returns the next event: the first serves as the trial, since XADD answers less
-- than XINFO.
local function begin_to_write(event, past)
  if is_writable then return event end
  is_writable = true
  local id = event < past and append(redis.pcall, KEYS[5], ARGV[6], '*', 'event', words[event])
  local failed = type(id) == 'table' and id
  if not id or failed or tonumber(string.match(id, '^%d+')) >= MOST_WRITES then
    unwritable_at_all = KEYS[5] ~= KEYS[1] and damage_of_stream(KEYS[5]) or failed or nil
    if unwritable_at_all then error(unwritable_at_all) end
  end
  if id then return event + 1 end
  redis.call('INCRBY', KEYS[3], 0)
  return event
end

-- Appends a record to the audit trail at this place in KEYS, before the trail's state. Its digest
-- covers the digest of the record before it. The caller stores the last one at its end.
local digest
local function audit(record, trail)
  local last = digest or redis.call('HGET', KEYS[trail + 1], 'digest') or ''
  local own = redis.sha1hex(last .. '\n' .. record)
  append(redis.call, KEYS[trail], AUDIT_KEPT, '*', 'record', record, 'digest', own, 'previous', last)
  digest = own
end
