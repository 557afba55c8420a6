-- ARGV: id. Reply: phase, outcome, model, deployment, whether it has a hook ('1'), created, status since, code and text
-- of its error. false if there is no such request.

local r = request(ARGV[1])
if not r then return false end
local is_ahead = r.phase == 'ended' and 0 or ahead
return {r.phase, r.outcome or '', r.model, r.dep, r.hook, r.created - is_ahead, r.at - is_ahead, r.code or '', r.text or ''}
