-- Ends a try to deliver, if it is held.
-- ARGV: repeated ('1'), id, which try it is, holder, 'deliver' or 'give up' or 'again', delay (ms) of the next try.
-- Reply: 1, or 0 if it is no longer held, or -1 if there is no such request.

frees_memory()
local repeated = ARGV[1] == '1'
local r = held_delivery(ARGV[2], tonumber(ARGV[3]), ARGV[4], repeated)
if not r and repeated and ARGV[5] == 'deliver' then  -- the webhook has accepted it, whoever tries again
  r = request(ARGV[2])
  if r and r.phase ~= 'delivering' then r = nil end
end
if not r then return call('EXISTS', P .. 'r:' .. ARGV[2]) - 1 end
if ARGV[5] == 'again' then
  drop(r)
  save(r)
  call('ZADD', LATER, now + ARGV[6], r.id)
else
  move(r, ARGV[5])
  close(r)
end
return 1
