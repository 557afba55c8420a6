-- Adds a workspace to the index, as of now. KEYS[1]: the index. ARGV: workspace.

local time = redis.call('TIME')
return redis.call('ZADD', KEYS[1], time[1] * 1000 + math.floor(time[2] / 1000), ARGV[1])
