-- Removes a workspace that has no requests from the index, unless somebody who is about to submit has just added it.
-- KEYS[1]: the index. ARGV: workspace, for how long (ms) who has added it may still submit.

local time = redis.call('TIME')
local added = redis.call('ZSCORE', KEYS[1], ARGV[1])
if added and added + ARGV[2] < time[1] * 1000 + time[2] / 1000 then return redis.call('ZREM', KEYS[1], ARGV[1]) end
return 0
