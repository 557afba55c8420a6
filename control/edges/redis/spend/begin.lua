-- Begin: a tree of which reservations may be missing waits until machines have put theirs again. `h` names that wait: the
-- epoch and a nonce. It goes with the hash, so what was put for it is known to be here as long as `h` is.
-- ARGV: what `e` must be | what `h` becomes | what is added to it where the database was set back: then `h` ends so.
-- Reply: what `h` is then; '' if `e` is another, or nothing is missing.

local state = redis.call('HMGET', key, 'e', 'h')
if state[1] ~= ARGV[1] then return '' end
local epoch, present = ARGV[1]:match('^%S+'), state[2]
if present == epoch then return '' end
if present and present:match('^(%S+) ') == epoch then return present end
local next = ARGV[2]
if present and present:sub(-#ARGV[3]) == ARGV[3] then next = next .. ARGV[3] end
redis.call('HSET', key, 'h', next)
return next
