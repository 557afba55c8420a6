-- Complete: committed events that are not counted yet get the reservations that they have lost. With the last of them,
-- all reservations of the tree are here, and `h` says so.
-- ARGV: what `e` must be | what `h` must be | what it becomes | what follows the amount and precedes the groups of a
-- reservation, then per event: its time (ms), its key, the groups that it counts for and the balance that it draws from,
-- each with `/`, the larger one of its cost and its draw (two limbs).
-- Reply: 1; 0 if `e` or `h` is another: the hash was lost or built meanwhile.
-- A marker stays: the end that made it may be sent again, and would give back what is put here.

local state = redis.call('HMGET', key, 'e', 'h', 'c')
if state[1] ~= ARGV[1] or state[2] ~= ARGV[2] then return 0 end
local counted = tonumber(state[3])
for at = 5, #ARGV, 4 do
  local name = 'p' .. ARGV[at + 1]
  if tonumber(ARGV[at]) > counted and not redis.call('HGET', key, name) then
    local whole, picos = read_amount(ARGV[at + 3])
    for group in ARGV[at + 2]:gmatch('([^/]+)/') do raise(group, whole, picos) end
    fields[#fields + 1] = name
    fields[#fields + 1] = ARGV[at + 3] .. ARGV[4] .. ARGV[at + 2]
  end
end
fields[#fields + 1] = 'h'
fields[#fields + 1] = ARGV[3]
save()
return 1
