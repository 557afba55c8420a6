-- A delivery that is held has lost its answer: the webhook is told a failure instead.
-- ARGV: id, which try it is, holder, code and text of the error. Reply: 1, or 0 if it is no longer held.

frees_memory()
local r = held_delivery(ARGV[1], tonumber(ARGV[2]), ARGV[3])
if not r then return 0 end
set(r, 'outcome', OUTCOMES['fail'])
set(r, 'code', ARGV[4])
set(r, 'text', ARGV[5])
forget_answer(r)
save(r)
call('HDEL', P .. 'i:' .. r.id, 'bytes', 'chunks', 'json')
return 1
