-- A part of commit: reads the hash fields that a call needs together before it decides, and writes
-- the changed ones together at its end. In a script each command costs more than its work.
-- KEYS: those of commit.
-- Answers: nothing of its own.

-- Fields or values a command: the stack of Lua is bounded. Even, since a field and its value are two.
local FIELDS = 1000

-- By name: the fields to read; their values (false: absent); and the fields that change, each
-- followed by its new value ('': removed), with the place of each value.
local hashes = {}

local function hash_of(name)
  local hash = hashes[name]
  if not hash then
    hash = {asked = {}, old = {}, moved = {}, places = {}, removes = false}
    hashes[name] = hash
  end
  return hash
end

local function ask_for(name, field)
  local hash = hash_of(name)
  if hash.old[field] == nil then
    hash.old[field], hash.asked[#hash.asked + 1] = false, field
  end
end

-- Returns the error to answer with if one of the hashes cannot be read.
local function read_asked()
  for name, hash in pairs(hashes) do
    local asked, old = hash.asked, hash.old
    for first = 1, #asked, FIELDS do
      local last = math.min(first + FIELDS - 1, #asked)
      local some = redis.pcall('HMGET', name, unpack(asked, first, last))
      if some.err then
        return string.match(tostring(some.err), 'WRONGTYPE') and damaged(name) or some
      end
      for place = first, last do old[asked[place]] = some[place - first + 1] end
    end
  end
end

-- Returns the value that was read or set since; nil, false or '' for none.
local function value_of(name, field)
  local hash = hash_of(name)
  local place = hash.places[field]
  if place then return hash.moved[place] end
  return hash.old[field]
end

-- '' removes the field.
local function set(name, field, value)
  local hash = hash_of(name)
  local moved, place = hash.moved, hash.places[field]
  if not place then
    place = #moved + 2
    moved[place - 1], hash.places[field] = field, place
  end
  moved[place] = value
  if value == '' then hash.removes = true end
end

local function call_for(command, name, list)
  for first = 1, #list, FIELDS do
    redis.call(command, name, unpack(list, first, math.min(first + FIELDS - 1, #list)))
  end
end

local function write_moved()
  for name, hash in pairs(hashes) do
    local kept, removed, moved = hash.moved, {}, hash.moved
    if hash.removes then
      kept = {}
      for place = 1, #moved, 2 do
        local field, value = moved[place], moved[place + 1]
        if value == '' then
          removed[#removed + 1] = field
        else
          kept[#kept + 1], kept[#kept + 2] = field, value
        end
      end
    end
    call_for('HSET', name, kept)
    call_for('HDEL', name, removed)
  end
end
