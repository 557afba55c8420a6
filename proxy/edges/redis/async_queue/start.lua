-- Begins the next attempt of a deployment: of paused requests first, then by priority, then of the oldest. None begins
-- while the workspace's answers exceed their bound.
-- ARGV: deployment, holder, timeout of a request (ms), most bytes of answers.
-- Reply: model, id, attempt, input, path, most attempts, first delay, longest delay, hook ('1'), deadline, now, ms in
-- the queue, pieces of a large input, which is not in the reply; false if there is nothing to begin.

local dep, holder, timeout, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if tonumber(call('HGET', TOTALS, 'answers') or 0) > most then return false end
local counts, late = call('HMGET', P .. 'd:' .. dep, 'due', '0', '1', '2'), 0
for place, stream in ipairs({'p', '0', '1', '2'}) do
  for _ = 1, tonumber(counts[place] or 0) do
    if late == 100 then return false end  -- the sweep does the rest
    frees_memory()
    local r = read(P .. 'q:' .. dep .. ':' .. stream, holder)
    if not decided_late(r) then
      begin(r, r.attempt + 1, timeout)
      local given = call('HMGET', P .. 'i:' .. r.id, 'input', 'path', 'first', 'longest', 'pieces')
      return {r.model, r.id, r.attempt, given[1], given[2], r.max, given[3], given[4], r.hook, r.deadline, now,
        r.begun - r.created, given[5]}
    end
    late = late + 1
  end
end
return false
