-- Admission by spend limits: calls are admitted in order and reserve what they are expected to cost, until a limit
-- refuses the rest. money.lua comes before this text.
-- ARGV: struct format | values: number of groups; per bound in the order of trial: number of its counting group, 1 for a
--       MONTH and 0 for a DAY, its amount | the groups' names | per bound: the name of its field up to the window's name
--       | what follows the amount in a reservation: the incarnation and the groups | per call: p<event key>, its amount.
-- Reply: how many calls were admitted, number of the first bound that refused the rest (0: none), how long (ms) until
--        the windows end whose spend alone leaves no room (0: reservations fill them). Or 0: what the tree spends is not
--        counted, nothing was reserved, and all calls are admitted.
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
    names[#names + 1] = ARGV[2 + groups + (b + 2) / 4] .. (bounds[b + 1] == 1 and month or day)
  end
  return names
end

local names = {'e', 'c'}
for g = 1, groups do names[2 + g] = 'r' .. ARGV[2 + g] end
for call = 1, calls do names[#names + 1] = ARGV[first + 2 * call - 2] end
local values = redis.call('HMGET', key, unpack(add_spent_fields(names)))
if not values[1] then return 0 end

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

-- The number of the first bound that has no room, or nil. A pico of what is spent is full only as a whole one.
local function refusing()
  for b = 2, last_bound, 4 do
    local group = own[bounds[b]]
    local whole, picos = read_spent(spent[at + (b + 2) / 4])
    whole, picos = add_amount(whole, picos, group[1], group[2])
    if is_at_least(whole, picos, bounds[b + 2], bounds[b + 3]) then return (b + 2) / 4 end
  end
end

local admitted, is_new, refused_by = 0, false, nil
for call = 1, calls do
  local name, amount = ARGV[first + 2 * call - 2], ARGV[first + 2 * call - 1]
  if not values[2 + groups + call] then
    refused_by = refusing()
    if refused_by then break end
    local whole, picos = read_amount(amount)
    for g = 1, groups do own[g][1], own[g][2] = add_amount(own[g][1], own[g][2], whole, picos) end
    fields[#fields + 1], fields[#fields + 2] = name, amount .. suffix
    is_new = true
  end
  admitted = call
end

if is_new then
  for g = 1, groups do reserved[ARGV[2 + g]] = own[g] end
  -- Control renews the expiry when it counts. It comes first, so that a failure leaves nothing reserved.
  if counted_ms < clock_ms - RENEWED_MS then redis.call('EXPIRE', key, EXPIRY_S) end
  save()
end
if not refused_by then return {admitted, 0, 0} end

local function until_end(is_month)
  local today = floor(at_ms / DAY_MS)
  local next_day = today + 1
  if is_month == 1 then
    while month_of(next_day) == month_of(today) do next_day = next_day + 1 end
  end
  return next_day * DAY_MS - clock_ms
end

local wait = 0
for b = 2, last_bound, 4 do
  local whole, picos = read_spent(spent[at + (b + 2) / 4])
  if is_at_least(whole, picos, bounds[b + 2], bounds[b + 3]) then wait = math.max(wait, until_end(bounds[b + 1])) end
end
return {admitted, refused_by, wait}
