-- Stores a chunk of an attempt's answer, if the attempt is held. A second time it changes nothing. Above the workspace's
-- bound only one answer may grow: so the bound is exceeded by one answer at most, and some answer can always be completed.
-- ARGV: timeout of a request (ms), repeated ('1'), id, attempt, holder, number of the chunk, the chunk, most bytes of
-- answers ('': repeated).
-- Reply: 1, or 2 if there is no room now, or 0 if it is no longer held, or -1 if there is no such request.

local r = held_attempt(ARGV[3], tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[1]), ARGV[2] == '1')
if not r then return request(ARGV[3]) and 0 or -1 end
local key, more = P .. 'a:' .. r.id, #ARGV[7] - call('HSTRLEN', P .. 'a:' .. r.id, ARGV[6])
if ARGV[8] ~= '' and more > 0 and (call('HGET', TOTALS, 'answers') or 0) + more > tonumber(ARGV[8]) then
  local grows = call('HGET', TOTALS, 'grows') or r.id
  if grows ~= r.id then return 2 end
  call('HSET', TOTALS, 'grows', r.id)
end
call('HSET', key, ARGV[6], ARGV[7])
if more ~= 0 then
  add(TOTALS, 'answers', more)
  set(r, 'stored', r.stored + more)
  save(r)
end
return 1
