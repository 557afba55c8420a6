-- Takes back what a holder has, because its process has died, or has not heard that it has it. Ends of requests are
-- counted by the next sweep.
-- ARGV: holder, most requests of one call, whether nothing was sent ('1': then no attempt and no try is used up), then the
-- ids that it keeps. Reply: how many were taken back; that most: call again.

frees_memory()
local left, keeps = tonumber(ARGV[2]), {}
for i = 4, #ARGV do keeps[ARGV[i]] = true end
for _, key in ipairs(call('ZRANGE', HELD, 0, -1)) do
  for _, pending in ipairs(call('XPENDING', key, GROUP, '-', '+', left + #ARGV, ARGV[1])) do
    local id = left > 0 and call('XRANGE', key, pending[1], pending[1])[1][2][2]
    if id and not keeps[id] then
      local r = request(id)
      local count = r.phase == 'running' and 'attempt' or 'tries'
      if ARGV[3] == '1' then set(r, count, r[count] - 1) end
      take_back(r)
      left = left - 1
    end
  end
end
return ARGV[2] - left
