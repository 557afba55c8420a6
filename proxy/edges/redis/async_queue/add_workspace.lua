-- Adds a workspace to the index, with a higher score than before. KEYS[1]: the index. ARGV: workspace.

local time = redis.call('TIME')
local now, before = time[1] * 1000 + math.floor(time[2] / 1000), redis.call('ZSCORE', KEYS[1], ARGV[1])
return redis.call('ZADD', KEYS[1], math.max(now, (before or -1) + 1), ARGV[1])
