-- Stores a piece of a large input, before its submission. A second time it changes nothing.
-- ARGV: id, number of the piece, the piece. Reply: 1, or 0 if the request is known and so has all pieces.

if request(ARGV[1]) then return 0 end
local key = P .. 'b:' .. ARGV[1]
call('HSET', key, ARGV[2], ARGV[3])
call('PEXPIRE', key, UNSUBMITTED)
return 1
