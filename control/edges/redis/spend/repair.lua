-- Repair: what groups have reserved becomes the sum of the reservations again. By differences, because calls took and
-- ended reservations since both were read; so two processes must not make the same repair.
-- ARGV: what `w` was when they were read, '' without one | what it becomes, then per group: its id, how much more it has
-- reserved, how much less (two limbs each). Reply: 1; 0 if another repair was made since.

if (redis.call('HGET', key, 'w') or '') ~= ARGV[1] then return 0 end
for at = 3, #ARGV, 3 do
  raise(ARGV[at], read_amount(ARGV[at + 1]))
  lower(ARGV[at], read_amount(ARGV[at + 2]))
end
fields[#fields + 1] = 'w'
fields[#fields + 1] = ARGV[2]
save()
return 1
