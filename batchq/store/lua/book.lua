-- A part of commit: hashes as the call leaves them. Nobody else writes while a script runs, so each
-- field is read once, changed here, and written at the end with all others of its hash.
-- The arithmetic of sums is exact: none passes 2^53 (limits.lua).
-- Answers: nothing by itself.

-- One command takes so many pairs: Lua hands over less than 8,000 values at once.
local PAIRS = 1000

local function text(number) return string.format('%.0f', number) end

local books, opened = {}, {}

-- The book of a hash: `values` by field, false where there is none; `changed` fields in order.
local function open(key)
  local book = books[key]
  if not book then
    book = {key = key, values = {}, changed = {}, is_changed = {}}
    books[key], opened[#opened + 1] = book, book
  end
  return book
end

local function look(book, field)
  local value = book.values[field]
  if value == nil then
    value = redis.call('HGET', book.key, field)
    book.values[field] = value
  end
  return value
end

-- Sets the field, or removes it where the value is ''.
local function put(book, field, value)
  book.values[field] = value ~= '' and value
  if not book.is_changed[field] then
    book.is_changed[field] = true
    book.changed[#book.changed + 1] = field
  end
end

local function write_out(command, key, values)
  if #values > 0 then redis.call(command, key, unpack(values)) end
end

local function write_book(book)
  local pairs_in, gone = {}, {}
  for _, field in ipairs(book.changed) do
    local value = book.values[field]
    if value then
      pairs_in[#pairs_in + 1] = field
      pairs_in[#pairs_in + 1] = type(value) == 'number' and text(value) or value
    else
      gone[#gone + 1] = field
    end
    if #pairs_in == 2 * PAIRS then
      write_out('HSET', book.key, pairs_in)
      pairs_in = {}
    end
    if #gone == PAIRS then
      write_out('HDEL', book.key, gone)
      gone = {}
    end
  end
  write_out('HSET', book.key, pairs_in)
  write_out('HDEL', book.key, gone)
end

local function write_books()
  for _, book in ipairs(opened) do write_book(book) end
end
