-- Does what is due: ends requests that waited too long, resumes paused ones, begins deliveries again, and takes back
-- attempts and deliveries whose lease is over. Looks at nothing that is not due, and at so many requests at most.
-- It does nothing while the time is doubtful: callers who know it may be about to set it right.
-- ARGV: most requests of one call, most bytes of answers.
-- Reply: stopped at that most (1), requests that have not ended (1: some), bytes of answers, deliveries that wait, ms to
-- the next due time or '', then three lists: "model dep", startable requests; "model dep", outcome, ms in the queue; and
-- "model dep outcome", ended requests that nobody has counted.

if is_doubtful then return {0, call('EXISTS', DEPLOYMENTS), 0, 0, '', {}, {}, {}} end
frees_memory()
local left, ended = tonumber(ARGV[1]), {}
local function report(r)
  ended[#ended + 1] = r.model .. ' ' .. r.dep
  ended[#ended + 1] = r.outcome
  ended[#ended + 1] = (r.begun > 0 and r.begun or now) - r.created
end

for _, id in ipairs(call('ZRANGEBYSCORE', LATER, '-inf', now, 'LIMIT', 0, left)) do
  local r = request(id)
  left = left - 1
  call('ZREM', LATER, id)
  if decided_late(r) then
    report(r)
  elseif r.phase == 'paused' then
    call('SREM', P .. 'z:' .. r.dep, id)
    resume(r)
  else
    put(r, 'hooks')
    save(r)
  end
end

for _, key in ipairs(left > 0 and call('ZRANGEBYSCORE', HELD, '-inf', now, 'LIMIT', 0, left) or {}) do
  if left <= 0 then break end
  left = left - 1
  for _, pending in ipairs(call('XPENDING', key, GROUP, 'IDLE', LEASE + SKEW, '-', '+', left + 1)) do
    local r = request(call('XRANGE', key, pending[1], pending[1])[1][2][2])
    if take_back(r) then report(r) end
    left = left - 1
  end
  local rest = call('EXISTS', key) == 1 and call('XPENDING', key, GROUP, '-', '+', 1000) or {}
  local idle = #rest == 1000 and LEASE - 1000 or 0
  for _, pending in ipairs(rest) do idle = math.max(idle, pending[3] - SKEW) end
  if #rest == 0 then call('ZREM', HELD, key) else call('ZADD', HELD, now + LEASE - idle, key) end
end

local uncounted = call('HGETALL', P .. 'uncounted')
call('DEL', P .. 'uncounted')
local answers, due = tonumber(call('HGET', TOTALS, 'answers') or 0), call('ZRANGE', LATER, 0, 0, 'WITHSCORES')[2]
return {left <= 0 and 1 or 0, call('EXISTS', DEPLOYMENTS), answers, tonumber(call('HGET', TOTALS, 'hooks') or 0),
  due and due - now or '', answers <= tonumber(ARGV[2]) and call('HGETALL', STARTABLE) or {}, ended, uncounted}
