-- Figures of deployments. ARGV: their ids. Reply: now; then per deployment: QUEUED requests of priority 0, 1 and 2,
-- those in progress, and when the oldest QUEUED one was created (or '').

-- When the stream's first request that nobody has read was created.
local function oldest_of(key)
  for _, group in ipairs(call('XINFO', 'GROUPS', key)) do
    for i = 1, #group, 2 do
      if group[i] == 'last-delivered-id' then
        local id = call('XRANGE', key, '(' .. group[i + 1], '+', 'COUNT', 1)[1][2][2]
        return tonumber(call('HGET', P .. 'r:' .. id, 'created'))
      end
    end
  end
end

local reply = {now}
for _, dep in ipairs(ARGV) do
  local counts = call('HMGET', P .. 'd:' .. dep, '0', '1', '2', 'running', 'paused', 'delivering')
  local oldest = math.huge
  for i = 1, 6 do counts[i] = tonumber(counts[i] or 0) end
  for i = 1, 3 do
    if counts[i] > 0 then oldest = math.min(oldest, oldest_of(P .. 'q:' .. dep .. ':' .. (i - 1))) end
    reply[#reply + 1] = counts[i]
  end
  reply[#reply + 1] = counts[4] + counts[5] + counts[6]
  reply[#reply + 1] = oldest < math.huge and oldest or ''
end
return reply
