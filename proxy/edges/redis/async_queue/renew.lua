-- Renews the leases of attempts. ARGV: timeout of a request (ms); then per attempt: id, attempt, holder.
-- Reply: the places (1 is the first) of those that are no longer held. A request that is not known is no reason to give
-- up: Redis may have lost it, and who accepted it submits it again.

local lost = {}
frees_memory()
for i = 2, #ARGV, 3 do
  local r = held_attempt(ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], tonumber(ARGV[1]))
  if r then
    renew(r)
  elseif request(ARGV[i]) then
    lost[#lost + 1] = (i + 1) / 3
  end
end
return lost
