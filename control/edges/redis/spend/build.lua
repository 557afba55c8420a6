-- Build: what groups have spent becomes what was read from the database. Reservations stay; those of events that are in
-- these figures are to be released afterwards.
-- ARGV: what `e` becomes | the time (ms) through which events are counted in these figures | their number, then per figure:
-- the name of its field, what is spent (three limbs); then the names of the fields of before.
-- Reply: 1; 0 if as much or more is counted already. By other prices, more: the reservations of events that these figures
-- lack are gone then, and HARD limits and balances would miss them.

local state = redis.call('HMGET', key, 'e', 'c', 'h')
-- Where `e` was deleted to count anew, `h` tells the epoch of `c`.
local epoch = (state[1] or state[3] or ''):match('^%S+')
if state[2] and epoch == ARGV[1]:match('^%S+') then
  local lead = state[2] - ARGV[2]
  if lead > 0 or lead == 0 and state[1] == ARGV[1] then return 0 end
end
local is_kept = {}
local figures_end = 3 + 2 * ARGV[3]
for at = 4, figures_end, 2 do
  is_kept[ARGV[at]] = true
  fields[#fields + 1] = ARGV[at]
  fields[#fields + 1] = ARGV[at + 1]
end
-- Their names are told, as a hash with many thousands of reservations cannot be read here.
for at = figures_end + 1, #ARGV do
  if not is_kept[ARGV[at]] then deleted[#deleted + 1] = ARGV[at] end
end
for at, value in ipairs({'e', ARGV[1], 'c', ARGV[2]}) do fields[#fields + 1] = value end
save()
redis.call('EXPIRE', key, EXPIRY_S)
return 1
