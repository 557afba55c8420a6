-- Admission by spend limits and a prepaid balance, the bounds: calls are admitted in order and reserve what they are
-- expected to cost, until a bound refuses the rest. With a HARD one, as each balance is, they reserve the most that they
-- can cost, or, if there is less room, all of it.
-- money.lua comes before this text.
-- ARGV: struct format | values: number of groups, the balance among them; per bound in the order of trial: number of the
--       group that counts for it, 1 for a MONTH and 0 for a DAY, 2 more for a HARD one, 4 more for a balance, its amount |
--       the groups' names | per bound: the name of its field up to the window's name | what follows the amount in a
--       reservation: the incarnation and the groups | per call: p<event key>, its amount; with a HARD bound two: the least
--       that it must get, and the whole.
-- Reply: how many calls were admitted, number of the first bound that refused the rest (0: none), how long (ms) until
--        the limits' windows end whose spend alone leaves no room (0: reservations fill them); if a balance refused: 1 if
--        what is drawn alone leaves no room, else 0. Or 0: what the tree spends is not
--        counted, and nothing was reserved.
--        With a HARD bound the first word of `e` follows, and what each admitted call got ('': the whole). Or -1: not all
--        reservations are here, or there is a balance and draws are not counted, or a key with limits of its own and what
--        keys spend is not; nothing was reserved.
-- A reservation that is there already changes nothing: the call was given up before its take ran.
-- The reference in Python: policy/spend/spend_book.py, admit(). See docs/reference/money.md#how-spend-is-counted.

local bounds = {unpack_(ARGV[1], ARGV[2])}
bounds[#bounds] = nil  -- struct.unpack also returns the next position
local groups, last_bound = bounds[1], #bounds - 3
local bound_count = (#bounds - 1) / 4
local first = 4 + groups + bound_count
local suffix, calls = ARGV[first - 1], (#ARGV - first + 1) / 2

local time = redis.call('TIME')
local clock_ms = time[1] * 1000 + floor(time[2] / 1000)
local at_ms = clock_ms
local day, month = window_names(at_ms)

-- Appends the name of each bound's field of what is spent.
local function add_spent_fields(names)
  for b = 2, last_bound, 4 do
    local window = bounds[b + 1] >= 4 and 'B' or bounds[b + 1] % 2 == 1 and month or day
    names[#names + 1] = ARGV[2 + groups + (b + 2) / 4] .. window
  end
  return names
end

local is_hard = false
for b = 3, last_bound + 1, 4 do is_hard = is_hard or bounds[b] >= 2 end

local names = {'e', 'c'}
for g = 1, groups do names[2 + g] = 'r' .. ARGV[2 + g] end
for call = 1, calls do names[#names + 1] = ARGV[first + 2 * call - 2] end
add_spent_fields(names)
if is_hard then names[#names + 1] = 'h' end
local values = redis.call('HMGET', key, unpack(names))
if not values[1] then return 0 end
local epoch = is_hard and values[1]:match('^%S*')
if is_hard and values[#names] ~= epoch then return -1 end
if bounds[last_bound + 1] >= 4 and not counts_draws(values[1]) then return -1 end  -- a balance is the last bound
if is_hard and ARGV[3]:sub(1, #KEY_NAME) == KEY_NAME and not counts_keys(values[1]) then return -1 end  -- it is first

-- Events are counted in the window of their timestamp. Where control has counted later ones than Redis' clock shows,
-- that clock has stepped back: theirs is the present window.
local counted_ms = tonumber(values[2] or 0)
local spent, at = values, 2 + groups + calls
if counted_ms > clock_ms then
  at_ms = counted_ms
  day, month = window_names(at_ms)
  spent, at = redis.call('HMGET', key, unpack(add_spent_fields({}))), 0
end

local own = {}
for g = 1, groups do
  local whole, picos = read_amount(values[2 + g])
  own[g] = {whole, picos}
end

-- What is spent of a bound. A pico of a SOFT one is full only as a whole one, of a HARD one as soon as it is begun.
local function read_used(b, packed)
  local whole, picos, last = read_spent(packed)
  if bounds[b + 1] >= 2 and last > 0 then return add_amount(whole, picos, 0, 1) end
  return whole, picos
end

-- The place of each bound -> what is spent of it: two limbs, at the place and after it.
local used = {}
for b = 2, last_bound, 4 do used[b], used[b + 1] = read_used(b, spent[at + (b + 2) / 4]) end
-- Events of the window that has `c` may still come, so a HARD bound needs room there, too.
if is_hard then
  local present_day, present_month = day, month
  day, month = window_names(counted_ms)
  if day ~= present_day then
    local before = redis.call('HMGET', key, unpack(add_spent_fields({})))
    for b = 2, last_bound, 4 do
      local whole, picos = read_used(b, before[(b + 2) / 4])
      if bounds[b + 1] >= 2 and is_at_least(whole, picos, used[b], used[b + 1]) then
        used[b], used[b + 1] = whole, picos
      end
    end
  end
  day, month = present_day, present_month
end

-- The number of the first bound that has no room, or nil. A call has room in a HARD one if it gets what it must have.
local function refusing(least, least_picos)
  for b = 2, last_bound, 4 do
    local group = own[bounds[b]]
    local whole, picos = add_amount(used[b], used[b + 1], group[1], group[2])
    if bounds[b + 1] < 2 then
      if is_at_least(whole, picos, bounds[b + 2], bounds[b + 3]) then return (b + 2) / 4 end
    else
      whole, picos = add_amount(whole, picos, least, least_picos)
      if not is_at_least(bounds[b + 2], bounds[b + 3], whole, picos) then return (b + 2) / 4 end
    end
  end
end

-- The whole of what a call asks for, or all the room that HARD bounds have. Call it if no bound refuses.
local function grant(whole, picos)
  local is_whole = true
  for b = 2, last_bound, 4 do
    if bounds[b + 1] >= 2 then
      local group = own[bounds[b]]
      local taken, taken_picos = add_amount(used[b], used[b + 1], group[1], group[2])
      local room, room_picos = subtract_amount(bounds[b + 2], bounds[b + 3], taken, taken_picos)
      if not is_at_least(room, room_picos, whole, picos) then whole, picos, is_whole = room, room_picos, false end
    end
  end
  return whole, picos, is_whole
end

local admitted, is_new, refused_by = 0, false, nil
local least, least_picos, grants = 0, 0, {}
for call = 1, calls do
  local name, amount = ARGV[first + 2 * call - 2], ARGV[first + 2 * call - 1]
  if not values[2 + groups + call] then
    if is_hard then
      least, least_picos = read_amount(amount)
      amount = amount:sub(AMOUNT_BYTES + 1)
    end
    refused_by = refusing(least, least_picos)
    if refused_by then break end
    local whole, picos = read_amount(amount)
    if is_hard then
      local is_whole
      whole, picos, is_whole = grant(whole, picos)
      if not is_whole then
        amount = pack(AMOUNT, whole, picos)
        grants[call] = amount
      end
    end
    for g = 1, groups do own[g][1], own[g][2] = add_amount(own[g][1], own[g][2], whole, picos) end
    fields[#fields + 1], fields[#fields + 2] = name, amount .. suffix
    is_new = true
  end
  if is_hard then grants[call] = grants[call] or '' end
  admitted = call
end

if is_new then
  for g = 1, groups do reserved[ARGV[2 + g]] = own[g] end
  -- Control renews the expiry when it counts. It comes first, so that a failure leaves nothing reserved.
  if counted_ms < clock_ms - RENEWED_MS then redis.call('EXPIRE', key, EXPIRY_S) end
  save()
end
if not refused_by then return is_hard and {admitted, 0, 0, epoch, unpack(grants)} or {admitted, 0, 0} end

local function until_end(is_month)
  local today = floor(at_ms / DAY_MS)
  local next_day = today + 1
  if is_month then
    while month_of(next_day) == month_of(today) do next_day = next_day + 1 end
  end
  return next_day * DAY_MS - clock_ms
end

local wait, is_by_balance = 0, bounds[4 * refused_by - 1] >= 4
for b = 2, last_bound, 4 do
  if (bounds[b + 1] >= 4) == is_by_balance then
    local whole, picos = read_used(b, spent[at + (b + 2) / 4])
    local is_full = is_at_least(whole, picos, bounds[b + 2], bounds[b + 3])
    if bounds[b + 1] >= 2 then
      whole, picos = add_amount(whole, picos, least, least_picos)
      is_full = not is_at_least(bounds[b + 2], bounds[b + 3], whole, picos)
    end
    if is_full then wait = math.max(wait, is_by_balance and 1 or until_end(bounds[b + 1] % 2 == 1)) end
  end
end
return is_hard and {admitted, refused_by, wait, epoch, unpack(grants)} or {admitted, refused_by, wait}
