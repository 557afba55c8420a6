-- Marks a deployment as ready or as parked, as of now. ARGV: deployment, model, 'ready' or 'parked'.

local key = P .. 'd:' .. ARGV[1]
call('HSET', key, ARGV[3], now)
if call('HEXISTS', DEPLOYMENTS, ARGV[2] .. ' ' .. ARGV[1]) == 0 then call('PEXPIRE', key, STANDING) end
return 1
