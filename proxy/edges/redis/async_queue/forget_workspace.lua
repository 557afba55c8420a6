-- Removes a workspace from the index, unless somebody has added it again since it had this score.
-- KEYS[1]: the index. ARGV: workspace, score ('': none is old enough). Reply: the score; false if it is not there now.

local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if score ~= ARGV[2] then return score end
redis.call('ZREM', KEYS[1], ARGV[1])
return false
