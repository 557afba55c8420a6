-- Ends an attempt that is held. A second time it changes nothing, and replies the same of an outcome that is final.
-- ARGV: timeout of a request (ms), repeated ('1'), id, attempt, holder, then what became of it:
--       'succeed', bytes, chunks, JSON ('1')  |  'fail', code, text  |  'again', code, text, delay (ms)
--       |  'lost' (its input), code, text.
-- Reply: 1, or 0 if it is no longer held, or -1 if there is no such request, or 'incomplete' if the attempt is held and
--        a part of its answer is not here.

frees_memory()
local r = held_attempt(ARGV[3], tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[1]), ARGV[2] == '1')
if not r then
  local known = request(ARGV[3])
  if not known then return -1 end
  touch(known)
  return known.attempt == tonumber(ARGV[4]) and known.outcome == OUTCOMES[ARGV[6]] and 1 or 0
end
if ARGV[6] == 'succeed' then
  if r.hook ~= '' and r.stored < tonumber(ARGV[7]) then return 'incomplete' end
  decide(r, 'succeed')
  if r.phase == 'delivering' then
    call('HSET', P .. 'i:' .. r.id, 'bytes', ARGV[7], 'chunks', ARGV[8], 'json', ARGV[9])
  end
elseif ARGV[6] ~= 'again' or r.attempt >= r.max or now + ARGV[9] >= r.deadline then
  decide(r, 'fail', ARGV[7], ARGV[8])
  if ARGV[6] ~= 'fail' then count_end(r) end
else
  pause(r, tonumber(ARGV[9]))
end
return 1
