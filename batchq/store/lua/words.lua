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

-- Takes them up, and asks for what stands in the books of what they name. Where each transaction
-- begins, and where in ARGV the values of its writes do: behind what else is there.
local function read_words(list)
  words = list
  local begins, firsts, place, value = {}, {}, 1, 10
  while words[place] do
    local write, charge, limit, _, _, past = parts_at(place)
    begins[#begins + 1], firsts[#firsts + 1], place = place, value, past
    for one = write, charge - 1, WRITE do
      ask_for(KEYS[10 + 2 * words[one]], words[one + 2])
      if words[one + 8] ~= '' then value = value + 1 end
    end
    for one = charge, limit - 1, CHARGE do ask_for(KEYS[7], words[one]) end
  end
  return begins, firsts
end
