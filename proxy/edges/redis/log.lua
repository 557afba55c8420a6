-- The counters of one hash: their packing, and the rolling log whose entries are merged per granule.
-- This text is prepended to take.lua and settle.lua. The reference in Python: policy/limits/windows.py.
-- See docs/reference/limits.md#counter-layout and docs/reference/limits.md#rolling-windows.
--
-- Field <group>: the packed header of one group. Unpacked it is a flat table h:
--   h[1] last time, h[2] day, h[3] requests of the day, h[4] settled tokens of the day, then six numbers per log,
--   at i = 5, 11, ...: h[i] kind, h[i+1] total, h[i+2] last time of the oldest closed entry (0: no closed entries),
--   h[i+3] last time of the open entry, h[i+4] its span, h[i+5] its count.
-- Field <group>:<kind>: the closed entries (last time, span, count), oldest first. Stale while h[i+2] is 0.
-- Kinds, in the order of trial: 1 REQUEST SECOND, 2 REQUEST MINUTE, 3 TOKEN SECOND, 4 TOKEN MINUTE, 5 REQUEST DAY (no
-- log), 6 TOKEN DAY (its log holds the reservations, each with a lease). A TOKEN kind plus MARGIN is the log of its
-- margins: how much more the calls in flight can cost than was expected of them. These logs are a header's last ones:
-- scripts of versions without margins keep a header's first five logs.
-- Redis hashes every byte of every string that Lua sees, so cost depends on few calls and short strings.

local key, floor, pack, unpack_ = KEYS[1], math.floor, struct.pack, struct.unpack
local DAY, MARGIN = 86400000, 64
local GRANULE = {20, 1000, 20, 1000, 0, 20000}
local WINDOW = {1000, 60000, 1000, 60000, 0, 0}  -- take.lua and settle.lua set the last one to the lease
local ENTRY, ENTRY_BYTES = '<I6I2I7', 15
local TAKES, TAKE_BYTES = '<I6I6I6I3', 15  -- revoked through; then per take: time, number, admitted

-- The struct format of a header, by its length: a header has only the logs that its limits need. (A table of formats
-- would be built again in every call.)
local function format(bytes)
  if bytes == 81 then return '<I6I3I7I7BI7I6I6I2I7BI7I6I6I2I7' end
  if bytes == 110 then return '<I6I3I7I7BI7I6I6I2I7BI7I6I6I2I7BI7I6I6I2I7' end
  if bytes == 52 then return '<I6I3I7I7BI7I6I6I2I7' end
  if bytes == 139 then return '<I6I3I7I7BI7I6I6I2I7BI7I6I6I2I7BI7I6I6I2I7BI7I6I6I2I7' end
  if bytes == 168 then
    return '<I6I3I7I7BI7I6I6I2I7BI7I6I6I2I7BI7I6I6I2I7BI7I6I6I2I7BI7I6I6I2I7'
  end
  return '<I6I3I7I7' .. string.rep('BI7I6I6I2I7', (bytes - 23) / 29)
end

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + floor(time[2] / 1000)
end

local function read(header)
  if not header then return {0, 0, 0, 0} end
  local h = {unpack_(format(#header), header)}
  h[#h] = nil  -- struct.unpack also returns the next position
  return h
end

local function packed(h)
  return pack(format(23 + 29 * (#h - 4) / 6), unpack(h))
end

-- The index of this kind's log in h, and whether it is new: an empty log is added if there is none.
local function log_at(h, kind)
  local n = #h
  for i = 5, n, 6 do
    if h[i] == kind then return i, false end
  end
  local at = n + 1
  if kind < MARGIN then
    while at > 5 and h[at - 6] > MARGIN do at = at - 6 end
    for i = n, at, -1 do h[i + 6] = h[i] end
  end
  h[at], h[at + 1], h[at + 2], h[at + 3], h[at + 4], h[at + 5] = kind, 0, 0, 0, 0, 0
  return at, true
end

-- g is the number of a group; ARGV[2 + g] is its name. closed: the closed entries that this call has read or changed,
-- by field. changed: those to write.
local closed, changed = {}, {}

local function closed_of(g, kind)
  local field = ARGV[2 + g] .. ':' .. kind
  local entries = closed[field]
  if not entries then
    entries = redis.call('HGET', key, field) or ''
    closed[field] = entries
  end
  return entries, field
end

local function write_closed(field, entries)
  closed[field], changed[field] = entries, entries
end

-- Drops the entries that have left the window. An entry of exactly one window ago counts: times are truncated to the
-- millisecond.
local function expire(g, h, i, now)
  local edge = now - WINDOW[h[i] % MARGIN]
  if h[i + 3] < edge then
    h[i + 1], h[i + 2], h[i + 3], h[i + 4], h[i + 5] = 0, 0, 0, 0, 0
  elseif h[i + 2] > 0 and h[i + 2] < edge then
    local entries, field = closed_of(g, h[i])
    local at, oldest = 1, 0
    while at <= #entries do
      local last, _, count = unpack_(ENTRY, entries, at)
      if last >= edge then
        oldest = last
        break
      end
      h[i + 1] = h[i + 1] - count
      at = at + ENTRY_BYTES
    end
    h[i + 2] = oldest
    write_closed(field, entries:sub(at))
  end
end

-- Counts events at `now`: in the open entry if it is in the same granule, else in a new one.
local function charge(g, h, i, count, granule, now)
  if count == 0 then return end
  local last, open = h[i + 3], h[i + 5]
  if open > 0 and last >= now - now % granule then
    h[i + 4], h[i + 5] = h[i + 4] + now - last, open + count
  else
    if open > 0 then
      local entry = pack(ENTRY, last, h[i + 4], open)
      if h[i + 2] == 0 then
        h[i + 2] = last
        write_closed(ARGV[2 + g] .. ':' .. h[i], entry)
      else
        local entries, field = closed_of(g, h[i])
        write_closed(field, entries .. entry)
      end
    end
    h[i + 4], h[i + 5] = 0, count
  end
  h[i + 1], h[i + 3] = h[i + 1] + count, now
end

local function roll(h, now, day)
  h[1] = now
  if h[2] ~= day then h[2], h[3], h[4] = day, 0, 0 end
end

-- Writes everything with one HSET, and renews the key's expiry once an hour.
local function save(fields, last_written, now)
  for field, entries in pairs(changed) do
    fields[#fields + 1] = field
    fields[#fields + 1] = entries
  end
  redis.call('HSET', key, unpack(fields))
  if floor(last_written / 3600000) ~= floor(now / 3600000) then redis.call('EXPIRE', key, 262800) end
end

