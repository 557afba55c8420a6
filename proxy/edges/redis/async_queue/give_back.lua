-- Takes back what a holder has: its process has died. Ends of requests are counted by the next sweep.
-- ARGV: holder, most requests of one call. Reply: how many it had; that most: call again.

frees_memory()
local left = tonumber(ARGV[2])
for _, key in ipairs(call('ZRANGE', HELD, 0, -1)) do
  if left == 0 then break end
  for _, pending in ipairs(call('XPENDING', key, GROUP, '-', '+', left, ARGV[1])) do
    take_back(request(call('XRANGE', key, pending[1], pending[1])[1][2][2]))
    left = left - 1
  end
end
return ARGV[2] - left
