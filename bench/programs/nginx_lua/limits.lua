-- Takes from four limits at three levels, or from none; or corrects tokens. As sliding windows of two counters are
-- usually written: the part of the last window that still counts is estimated from its share.
-- KEYS: a counter per limit. ARGV: take or settle; per limit: threshold, window (ms), cost.
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)

local counters = {}
for i, key in ipairs(KEYS) do
  local window_ms, cost = tonumber(ARGV[3 * i]), tonumber(ARGV[3 * i + 1])
  local window = math.floor(now_ms / window_ms)
  local current = key .. ':' .. window
  if ARGV[1] == 'take' then
    local used = redis.call('MGET', current, key .. ':' .. (window - 1))
    local share = 1 - (now_ms % window_ms) / window_ms
    if (tonumber(used[1]) or 0) + share * (tonumber(used[2]) or 0) + cost > tonumber(ARGV[3 * i - 1]) then
      return {i, window_ms - now_ms % window_ms}
    end
  end
  counters[i] = {current, cost, window_ms}
end
for _, counter in ipairs(counters) do
  if redis.call('INCRBY', counter[1], counter[2]) == counter[2] then
    redis.call('PEXPIRE', counter[1], 2 * counter[3])
  end
end
return {0, 0}
