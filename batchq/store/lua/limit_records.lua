-- A part of commit: reads the records of limits; and, before anything is decided, the sums and
-- limits that the charges of all transactions need, with a command for each hash.
-- KEYS: those of commit: 7 charges.
-- ARGV: those of commit: 7 the key of the limits, 8 the revision seen.
-- Answers: nothing of its own.

-- A field beside the scopes: the revision of the limits' last change. No scope contains a space.
local LAST_CHANGE = 'last change'

local seen = tonumber(ARGV[8])

-- Stored record by scope, and amounts by record: each is read once.
local stored, read = {}, {}

-- '' stands for a limit that this call has removed; batchq never stores it.
local function know_record(scope, record) stored[scope] = record == '' and 'nothing' or record end

local function record_of(scope)
  if stored[scope] == nil then know_record(scope, redis.call('HGET', ARGV[7], scope)) end
  return stored[scope]
end

-- Returns the amounts of a record; false if it is malformed.
local function read_limit(record)
  if #record > MOST_RECORD_BYTES then return false end
  local is_one, amounts = pcall(cjson.decode, record)
  if not is_one or string.sub(record, 1, 1) ~= '{' then return false end
  for _, stated in pairs(amounts) do
    local units = units_of(stated)
    if not units or units < 0 then return false end
  end
  return amounts
end

local function amounts_of(scope, stated)
  local record = stated[scope] or record_of(scope)
  if not record or record == '' then return nil end
  if read[record] == nil then read[record] = read_limit(record) end
  if not read[record] then is_record_malformed = true end
  return read[record] or nil
end

-- Parts looked at ahead, about; what is not known then is read when it is needed.
local MOST_AHEAD = 4096

-- Returns, in order, the ledger fields of the charges, and the scopes whose limits they may meet.
local function needed(begins)
  local fields, scopes, is_known, left = {}, {}, {}, MOST_AHEAD
  local function need(list, name)
    if not is_known[name] then is_known[name], list[#list + 1] = true, name end
  end
  local function look(parts, checked)
    for part = 1, #parts, PART do
      need(fields, parts[part + 3])
      if checked then need(scopes, parts[part]) end
    end
    left = left - #parts / PART
  end
  for _, begin in ipairs(begins) do
    local _, charge, limit = parts_at(begin)
    for place = charge, limit - 1, CHARGE do
      if left < 0 then return fields, scopes end
      local old, new = held(value_of(KEYS[7], words[place])), held(words[place + 1])
      if old then look(old.parts, false) end
      if new then look(new.parts, words[place + 2] == 'yes') end
    end
  end
  return fields, scopes
end

local function read_ahead(begins)
  local fields, scopes = needed(begins)
  read_sums(fields)
  if #scopes > 0 and seen then scopes[#scopes + 1] = LAST_CHANGE end
  for first = 1, #scopes, FIELDS do
    local last = math.min(first + FIELDS - 1, #scopes)
    local some = redis.pcall('HMGET', ARGV[7], unpack(scopes, first, last))
    if some.err then return end
    for place = first, last do know_record(scopes[place], some[place - first + 1]) end
  end
end
