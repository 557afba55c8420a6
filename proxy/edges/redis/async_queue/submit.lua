-- Queues a request, unless it is known. A repeated submission was accepted once: no bound refuses it.
-- ARGV: id, deployment, model, path, priority, input, its size, pieces that it was put in (0: none), hook ('': none),
--       longest wait (ms), most attempts, first delay, longest delay (ms), parks ('1'), most queued bytes ('': repeated).
-- Reply: 'queued', 'known', 'parked' or 'full', or 'incomplete' if pieces of the input are missing.

local id, dep, model, path, prio, input, size, pieces, hook, wait, max, first, longest, parks, most = unpack(ARGV)
local piecewise = P .. 'b:' .. id
local function refuse(why)
  call('UNLINK', piecewise)
  return why
end
size, pieces = tonumber(size), tonumber(pieces)
local known = request(id)
if known then
  touch(known)
  return 'known'
end
local counts = call('HMGET', P .. 'd:' .. dep, '0', '1', '2', 'ready', 'parked')
local function holds(mark)
  return mark and now < mark + STANDING
end
if most ~= '' then
  local queued = counts[1] or counts[2] or counts[3]
  if queued and not holds(counts[4]) and (parks == '1' or holds(counts[5])) then return refuse('parked') end
  if (call('HGET', TOTALS, 'queued') or 0) + size > tonumber(most) then return refuse('full') end
end
if call('HLEN', piecewise) < pieces then return 'incomplete' end
-- First the write that needs the most memory: Redis refuses it, or nothing.
call('HSET', P .. 'i:' .. id, 'input', input, 'path', path, 'hook', hook, 'first', first, 'longest', longest,
  'pieces', pieces)
call('PERSIST', piecewise)
local r = {id = id, key = P .. 'r:' .. id, changes = {}, dep = dep, model = model}
call('DEL', r.key)
call('HSET', r.key, 'phase', 'queued', 'dep', dep, 'model', model, 'prio', prio, 'hook', hook == '' and '' or '1',
  'created', now, 'until', now + wait, 'max', max, 'size', size, 'at', now)
put(r, prio)
save(r)
call('ZADD', LATER, now + wait, id)
if size > 0 then add(TOTALS, 'queued', size) end
add(P .. 'd:' .. dep, prio, 1)
add(DEPLOYMENTS, model .. ' ' .. dep, 1)
call('PERSIST', P .. 'd:' .. dep)
hint()
return 'queued'
