-- A part of commit: where each part stands in its words. All transactions are one list: making a
-- table for each of their parts would take longer than applying the part.
-- Answers: nothing of its own.

-- Words in one write, and in one charge; a limit or a delivery has two.
local WRITE, CHARGE, PAIR = 9, 3, 2

-- All words, once they are decoded, and the number of their writes.
local words, planned

-- Returns where a transaction's writes, charges, limits, deliveries and events begin, and the next
-- transaction.
local function parts_at(place)
  local writes, charges, limits, deliveries, events = unpack(words, place, place + 4)
  local write = place + 5
  local charge = write + WRITE * writes
  local limit = charge + CHARGE * charges
  local delivery = limit + PAIR * limits
  local event = delivery + PAIR * deliveries
  return write, charge, limit, delivery, event, event + events
end

-- batchq's calls stay below these: a gang has at most 50,000 pods, each with a write, a charge, a
-- delivery and seldom an event. Calls of this size take about half a second.
local MOST_WORDS, MOST_WORDS_BYTES = 1000000, 67108864
local MOST_CHARGES, MOST_EVENTS = 75000, 150000

-- Whether the numbers at the start of a transaction are whole, and the parts that they count are
-- present: a loop over a negative number would not end.
local function is_whole(place)
  for one = place, place + 4 do
    local count = words[one]
    if type(count) ~= 'number' or count < 0 or count > #words or count % 1 ~= 0 then return false end
  end
  local _, _, _, _, _, past = parts_at(place)
  return past <= #words + 1
end

-- Decodes the words, and asks for the hash fields that they name. Returns four values: where each
-- transaction begins in the words, where the values of its writes begin in ARGV, where the audit
-- records begin in ARGV, and the place of the audit trail in KEYS, nil without audit records.
-- Returns nil and an error if a call is too large or cut off.
local function read_words(text)
  if #text > MOST_WORDS_BYTES then return nil, too_large(#text .. ' bytes of transactions') end
  words = cjson.decode(text)
  if #words > MOST_WORDS then return nil, too_large(#words .. ' words of transactions') end
  local begins, firsts, place, value = {}, {}, 1, 10
  local charges, events = 0, 0
  planned = 0
  while words[place] do
    if not is_whole(place) then return nil, redis.error_reply('ERR transactions are cut off') end
    local write, charge, limit, _, event, past = parts_at(place)
    planned, charges = planned + (charge - write) / WRITE, charges + (limit - charge) / CHARGE
    events = events + past - event
    if charges > MOST_CHARGES then return nil, too_large('the number of charges') end
    if events > MOST_EVENTS then return nil, too_large('the number of events') end
    begins[#begins + 1], firsts[#firsts + 1], place = place, value, past
    for one = write, charge - 1, WRITE do
      ask_for(KEYS[10 + 2 * words[one]], words[one + 2])
      if words[one + 8] ~= '' then value = value + 1 end
    end
    for one = charge, limit - 1, CHARGE do ask_for(KEYS[7], words[one]) end
  end
  return begins, firsts, value, ARGV[value] and #KEYS - 1
end
