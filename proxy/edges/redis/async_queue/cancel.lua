-- Ends a request that is QUEUED. Of a cancel and a start exactly one wins, because each is one script.
-- ARGV: id. Reply: whether it is canceled now (1), phase, outcome. false if there is no such request.

local r = request(ARGV[1])
if not r then return false end
local queued = r.phase == 'queued' and 1 or 0
if queued == 1 then
  frees_memory()
  move(r, 'cancel')
  close(r)
else
  touch(r)
end
return {queued, r.phase, r.outcome or ''}
