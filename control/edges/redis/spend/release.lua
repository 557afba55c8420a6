-- Release: reservations whose call will never end any more go, and what they hold of their groups with them.
-- ARGV: the names of their fields. Reply: how many there were.

local count = 0
for at = 1, #ARGV do
  local reservation = redis.call('HGET', key, ARGV[at])
  if reservation then
    release(ARGV[at], reservation)
    count = count + 1
  end
end
save()
return count
