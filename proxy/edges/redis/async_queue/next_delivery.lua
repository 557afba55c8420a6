-- Holds the next delivery. ARGV: holder. Reply: model, deployment, id, hook, which try it is, outcome, when it was
-- decided and how long ago (ms), code and text of the error, bytes, chunks and JSON ('1') of the answer;
-- false if there is none.

if not call('HGET', TOTALS, 'hooks') then return false end
frees_memory()
local r = read(HOOKS, ARGV[1])
set(r, 'tries', r.tries + 1)
save(r)
local given = call('HMGET', P .. 'i:' .. r.id, 'hook', 'bytes', 'chunks', 'json')
return {r.model, r.dep, r.id, given[1], r.tries, r.outcome, r.decided - ahead, now - r.decided, r.code, r.text,
  given[2] or '', given[3] or '', given[4] or ''}
