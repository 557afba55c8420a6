-- Renews the leases of deliveries. ARGV: per delivery: id, which try it is, holder.
-- Reply: the places (1 is the first) of those that are no longer held.

local lost = {}
frees_memory()
for i = 1, #ARGV, 3 do
  local r = held_delivery(ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2])
  if r then renew(r) else lost[#lost + 1] = (i + 2) / 3 end
end
return lost
