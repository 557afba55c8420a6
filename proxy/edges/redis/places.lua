-- The word of a worker on its calls in flight, or of its supervisor.
-- ARGV: struct format | values: 0 its word, 1 it lives, 2 it is gone; number of the word (0: its supervisor's), number
--       up to which it knows the answers of its takes; per group how many places it holds | the groups' names | the incarnation.
-- Reply: how many fields were written. Repeating it changes nothing but the time; a late copy of a word nothing.
-- The reference in Python: policy/limits/in_flight/places.py. See docs/reference/limits.md#calls-in-flight.

local key, name = KEYS[1], ARGV[#ARGV]
local time = redis.call('TIME')
local clock_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local values = {struct.unpack(ARGV[1], ARGV[2])}
local does, version, answered = values[1], values[2], values[3]

local fields, is_new = {}, false
for g = 1, #ARGV - 3 do
  local p = read_places(key, ARGV[2 + g] .. PLACES, name, clock_ms)
  local is_written, is_over = p.renewed > 0, does == 2
  if does == 0 or does == 2 and version > 0 then
    is_written = version > p.version and (is_written or does == 0)
    if is_written then
      p.version, p.held = version, values[3 + g]
      drop_takes(p, answered)
      is_over = is_over and #p.takes == 0
    end
  end
  if is_written then
    p.renewed = is_over and 0 or p.now
    fields[#fields + 1], fields[#fields + 2] = p.field, packed_places(p, name)
    is_new = is_new or p.is_new
  end
end
if #fields > 0 then
  redis.call('HSET', key, unpack(fields))
  if is_new then redis.call('EXPIRE', key, EXPIRY_S) end
end
return #fields / 2
