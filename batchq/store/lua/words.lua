-- A part of commit: where in its words what stands. All transactions are one list, as a table for
-- each of their parts would take longer to make than the part to apply.
-- Answers: nothing by itself.

-- How many words there are of one write, and of one charge; a limit or a delivery has two.
local WRITE, CHARGE, PAIR = 9, 3, 2

-- All of them, once they are read.
local words

-- Where the writes, charges, limits, deliveries and events of a transaction begin, and the next one.
local function parts_at(place)
  local writes, charges, limits, deliveries, events = unpack(words, place, place + 4)
  local write = place + 5
  local charge = write + WRITE * writes
  local limit = charge + CHARGE * charges
  local delivery = limit + PAIR * limits
  local event = delivery + PAIR * deliveries
  return write, charge, limit, delivery, event, event + events
end

-- No call of batchq's has more of them, or is longer: a gang has 50,000 pods at most, each with a
-- write, a charge, a delivery and hardly an event. So many of each take about half a second.
local MOST_WORDS, MOST_WORDS_BYTES = 1000000, 67108864
local MOST_CHARGES, MOST_EVENTS = 75000, 150000

-- Whether the counts that a transaction begins with are counts, and all that they count is there: a
-- loop over less than nothing would not end.
local function is_whole(place)
  for one = place, place + 4 do
    local count = words[one]
    if type(count) ~= 'number' or count < 0 or count > #words or count % 1 ~= 0 then return false end
  end
  local _, _, _, _, _, past = parts_at(place)
  return past <= #words + 1
end

-- Takes them up, and asks for what stands in the books of what they name. Where each transaction
-- begins, and where in ARGV the values of its writes do: behind what else is there; nothing and an
-- error to answer with, if there is more than one call may carry.
local function read_words(text)
  if #text > MOST_WORDS_BYTES then return nil, too_large(#text .. ' bytes of transactions') end
  words = cjson.decode(text)
  if #words > MOST_WORDS then return nil, too_large(#words .. ' words of transactions') end
  local begins, firsts, place, value = {}, {}, 1, 10
  local charges, events = 0, 0
  while words[place] do
    if not is_whole(place) then return nil, redis.error_reply('ERR transactions are cut off') end
    local write, charge, limit, _, event, past = parts_at(place)
    charges, events = charges + (limit - charge) / CHARGE, events + past - event
    if charges > MOST_CHARGES then return nil, too_large('what is charged') end
    if events > MOST_EVENTS then return nil, too_large('what is told') end
    begins[#begins + 1], firsts[#firsts + 1], place = place, value, past
    for one = write, charge - 1, WRITE do
      ask_for(KEYS[10 + 2 * words[one]], words[one + 2])
      if words[one + 8] ~= '' then value = value + 1 end
    end
    for one = charge, limit - 1, CHARGE do ask_for(KEYS[7], words[one]) end
  end
  return begins, firsts
end
