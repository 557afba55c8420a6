-- Start: what a group's calendar windows have counted becomes at least what is committed of them.
-- ARGV: struct format | values: per figure its kind, the number of its window, the count | the group's name.
-- Reply: 1 if a count rose, else 0. What is counted already stays, so this may be done any number of times.
-- The reference in Python: policy/limits/starts.py. See docs/reference/limits.md#days.

local values = {unpack_(ARGV[1], ARGV[2])}
local h = read(redis.call('HGET', key, ARGV[3]))
local last_written, has_risen = h[1], false
catch_up({h}, 1, 1)
for v = 1, #values - 1, 3 do  -- struct.unpack also returns the next position
  local kind, count = values[v], values[v + 2]
  if count > 0 and values[v + 1] == window_of(kind, day) then
    local at = count_at(h, kind)
    if h[at] < count then
      h[at], has_risen = count, true
    end
  end
end
if not has_risen then return 0 end
save({ARGV[3], packed(h)}, last_written, h[1])
return 1
