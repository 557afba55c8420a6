-- Count: what events of a tree cost becomes spent, what they draw from balances becomes drawn, and their reservations
-- go. Each event counts once: those through the time `c` are counted already. So this may be done any number of times, by
-- several processes.
-- ARGV: what `e` must be | the times (ms) after and through which these are all events, then per event: its time, its
-- key, the groups that it counts for, each with `/`, its cost (three limbs), the name of the balance that it draws from,
-- and its draw (three limbs); '' twice: it draws from none. A withdrawal is an event that has only a draw.
-- Reply: 1 if the events are counted now or were before; 2 if they are, and reservations may be missing: `h` is not the
-- first word of `e`; -1 if `e` is another: nothing here counts; -2 if events before these are not counted.

local after, through = tonumber(ARGV[2]), tonumber(ARGV[3])
local state = redis.call('HMGET', key, 'e', 'c', 'h')
if state[1] ~= ARGV[1] or not state[2] then return -1 end
local is_counted = state[3] == ARGV[1]:match('^%S+') and 1 or 2
local counted = tonumber(state[2])
if counted < after then return -2 end
if counted >= through then return is_counted end

local spent = {}
local function spend(field, whole, picos, last)
  local own = spent[field]
  if not own then
    own = {read_spent(redis.call('HGET', key, field))}
    spent[field] = own
  end
  own[1], own[2], own[3] = add_spent(own[1], own[2], own[3], whole, picos, last)
end

for at = 4, #ARGV, 6 do
  local at_ms = tonumber(ARGV[at])
  if at_ms > counted then
    local whole, picos, last = read_spent(ARGV[at + 3])
    local day, month = window_names(at_ms)
    for group in ARGV[at + 2]:gmatch('([^/]+)/') do
      spend('s' .. group .. ':' .. day, whole, picos, last)
      spend('s' .. group .. ':' .. month, whole, picos, last)
    end
    if ARGV[at + 4] ~= '' then spend('s' .. ARGV[at + 4] .. ':B', read_spent(ARGV[at + 5])) end
    local name = 'p' .. ARGV[at + 1]
    local reservation = redis.call('HGET', key, name)
    if reservation then release(name, reservation) end
  end
end
for name, own in pairs(spent) do
  fields[#fields + 1] = name
  fields[#fields + 1] = pack(SPENT, own[1], own[2], own[3])
end
fields[#fields + 1] = 'c'
fields[#fields + 1] = ARGV[3]
save()
redis.call('EXPIRE', key, EXPIRY_S)
return is_counted
