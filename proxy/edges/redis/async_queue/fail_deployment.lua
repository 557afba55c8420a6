-- Fails the requests of a deployment that do not run: it was deleted.
-- ARGV: deployment, most requests of one call. Reply: how many have failed; that most: call again.

frees_memory()
local dep, left, failed = ARGV[1], tonumber(ARGV[2]), 0
local function fail(r)
  decide(r, 'fail', unpack(ENDINGS.deployment_gone))
  count_end(r)
  left, failed = left - 1, failed + 1
end
local counts = call('HMGET', P .. 'd:' .. dep, 'due', '0', '1', '2')
for place, stream in ipairs({'p', '0', '1', '2'}) do
  for _ = 1, math.min(tonumber(counts[place] or 0), left) do
    fail(read(P .. 'q:' .. dep .. ':' .. stream, 'gone'))
  end
end
for _, id in ipairs(call('SRANDMEMBER', P .. 'z:' .. dep, math.max(left, 0))) do fail(request(id)) end
return failed
