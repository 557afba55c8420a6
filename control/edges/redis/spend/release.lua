-- Release: reservations whose call will never end any more go, and what they hold of their groups with them.
-- ARGV: the time (ms) through which events must be counted, or their events could be in no sum | the names of their
-- fields. Reply: how many there were.

local count = 0
if tonumber(redis.call('HGET', key, 'c') or 0) < tonumber(ARGV[1]) then return count end
for at = 2, #ARGV do
  local reservation = redis.call('HGET', key, ARGV[at])
  if reservation then
    release(ARGV[at], reservation)
    count = count + 1
  end
end
save()
return count
