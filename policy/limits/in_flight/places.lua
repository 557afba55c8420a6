-- The places of calls in flight: one field per counting group, <group>:places. This text comes before take.lua and
-- places.lua of the proxy; script_constants.py comes before it.
-- The reference in Python: policy/limits/in_flight/places.py. See docs/reference/limits.md#calls-in-flight.
--
-- The field: its own last time, how far that is ahead of Redis' clock; then per worker incarnation: its name, time of
-- the last renewal, number of its last word, how many places it held then; number of takes, and of each its number and
-- how many calls it admitted.

-- Reads a field, for the incarnation `name`. `used`: the places that count. `bytes`: the entries of the others.
-- `renewed`: 0 if it has no entry.
local function read_places(key, field, name, clock_ms)
  local unpack_ = struct.unpack
  local stored = redis.call('HGET', key, field) or ''
  local last, ahead = 0, 0
  if stored ~= '' then last, ahead = unpack_('<I6I6', stored) end
  local p = {field = field, used = 0, bytes = {}, renewed = 0, version = 0, held = 0, takes = {}}
  p.is_new, p.now = stored == '', math.max(clock_ms + ahead, last)
  p.ahead = p.now - clock_ms
  p.has_stepped = p.ahead ~= ahead
  local at = 13
  while at <= #stored do
    local first, its_name, renewed, version, held, count = at, nil, nil, nil, nil, nil
    its_name, renewed, version, held, count, at = unpack_('<Bc0I6I6I4I2', stored, at)
    local total, takes = held, {}
    for t = 1, count do
      local number, admitted
      number, admitted, at = unpack_('<I6I3', stored, at)
      total, takes[t] = total + admitted, {number, admitted}
    end
    local silence = p.now - renewed
    if silence <= FORGOTTEN_MS then
      if its_name == name then
        p.renewed, p.version, p.held, p.takes = renewed, version, held, takes
        p.used = p.used + total
      else
        if silence <= SILENT_MS then p.used = p.used + total end
        p.bytes[#p.bytes + 1] = stored:sub(first, at - 1)
      end
    end
  end
  return p
end

-- The field as it is to be stored. `name`: the incarnation. Its entry is left out while `renewed` is 0.
local function packed_places(p, name)
  local parts = {struct.pack('<I6I6', p.now, p.ahead), unpack(p.bytes)}
  if p.renewed > 0 then
    parts[#parts + 1] = struct.pack('<Bc0I6I6I4I2', #name, name, p.renewed, p.version, p.held, #p.takes)
    for t = 1, #p.takes do
      parts[#parts + 1] = struct.pack('<I6I3', p.takes[t][1], p.takes[t][2])
    end
  end
  return table.concat(parts)
end

-- Drops the takes up to a number. Returns how many calls they admitted.
local function drop_takes(p, through)
  local dropped = 0
  while p.takes[1] and p.takes[1][1] <= through do
    dropped = dropped + p.takes[1][2]
    table.remove(p.takes, 1)
  end
  return dropped
end

-- Adds what a take admits. The takes up to `answered` are one from now on: the next word includes them all.
local function add_take(p, number, answered, admitted)
  local known = nil
  for t = 1, #p.takes do
    if p.takes[t][1] <= answered then known = p.takes[t][1] end
  end
  if known then
    table.insert(p.takes, 1, {known, drop_takes(p, known)})
  end
  p.takes[#p.takes + 1] = {number, admitted}
end
