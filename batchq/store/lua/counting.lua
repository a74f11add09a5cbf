-- A part of commit: counts the charges of a transaction, unless one is refused.
-- KEYS: those of commit: 7 charges.
-- Answers: nothing of its own.

-- Returns the parts that a transaction's only charge adds or deducts, and 1 or -1, if its holder had
-- no charge before, or has none now. Then there are no differences to work out. Returns nothing for
-- other charges, those that raise a limit, and malformed records, which are for `weigh`.
local function only_parts(first, past)
  if past - first > CHARGE then return nil, nil end
  local old, new = held(value_of(KEYS[7], words[first])), held(words[first + 1])
  local parts, sign
  if old == NOTHING and new and not new.is_capacity then
    parts, sign = new.parts, 1
  elseif new == NOTHING and old and old.is_countable then
    parts, sign = old.parts, -1
  end
  if parts then bound_parts(#parts) end
  return parts, sign
end

-- Whether a sum that these parts change is malformed; if not, all of them are known.
local function is_any_malformed(parts)
  for place = PART, #parts, PART do
    local field = parts[place]
    if not sums[field] then sum(field) end
    if malformed[field] then return true end
  end
  return false
end

-- As refuse_charges, for the parts that the only charge of a transaction adds, if it states no
-- limits.
local function refuse_parts(parts, checked)
  if checked and have_changed() then
    for place = 1, #parts, PART do
      if not is_of_node(parts[place]) then return {'conflict', 'the limits'} end
    end
  end
  for place = 1, #parts, PART do
    local units, field = parts[place + 2], parts[place + 3]
    local rest, limit = sums[field] or sum(field), MOST
    if checked then
      limit = limits[field] or limit_of(field, parts[place], parts[place + 1], NONE, NONE)
    end
    if units > 0 and units > limit - rest then
      local need, found = math.min(units, MOST), math.min(rest, MOST)
      return {'limit', parts[place], parts[place + 1], text(need), text(limit), text(found)}
    end
  end
  return nil
end

-- Counts the charges of a transaction, the words from `first` to before `past`, unless one is
-- refused. Returns the refusal.
local function count_charges(first, past, delivery)
  local parts, sign
  if past == delivery then parts, sign = only_parts(first, past) end
  if parts then
    local refused = sign > 0 and refuse_parts(parts, words[first + 2] == 'yes')
    if is_malformed(NONE, NONE) or is_any_malformed(parts) then return {'conflict', 'the ledger'} end
    if refused then return refused end
    for place = 1, #parts, PART do count(parts[place + 3], sign * parts[place + 2]) end
  else
    local plus, minus, growths = weigh(first, past)
    local refused = growths and refuse_charges(plus, minus, growths, past, delivery)
    if not growths or is_malformed(plus, minus) then return {'conflict', 'the ledger'} end
    if refused then return refused end
    for field, units in pairs(minus) do count(field, -units) end
    for field, units in pairs(plus) do count(field, units) end
  end
  for place = first, past - 1, CHARGE do set(KEYS[7], words[place], words[place + 1]) end
end
