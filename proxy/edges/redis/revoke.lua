-- Revocation after a lost connection: refuses every take up to a number from now on, and lists the unanswered takes
-- that have run. Repeating it changes nothing and gives the same reply.
-- ARGV: the field of the incarnation's takes (see take.lua) | the number.
-- Reply: per take that ran, newest first: time, number, how many requests it admitted.
-- The reference in Python: policy/limits/take_numbers.py. See docs/reference/limits.md#returned-reservations.

local key, field, through = KEYS[1], ARGV[1], tonumber(ARGV[2])
local takes = redis.call('HGET', key, field)
local revoked, ran = 0, ''
if takes then revoked, ran = struct.unpack('<I6', takes), takes:sub(7) end
if through > revoked then
  if ran == '' then
    local time = redis.call('TIME')
    ran = struct.pack('<I6I6I3', time[1] * 1000 + math.floor(time[2] / 1000), 0, 0)
  end
  redis.call('HSET', key, field, struct.pack('<I6', through) .. ran)
  redis.call('EXPIRE', key, EXPIRY_S)
end
local reply = {}
for at = 1, #ran, 15 do
  local n, time, number, admitted = #reply, struct.unpack('<I6I6I3', ran, at)
  if number > 0 then reply[n + 1], reply[n + 2], reply[n + 3] = time, number, admitted end
end
return reply
