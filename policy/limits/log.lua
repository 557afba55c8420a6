-- The counters of one hash: their packing, and the rolling log whose entries are merged per granule.
-- This text comes before take.lua, settle.lua and control's start.lua; script_constants.py and month.lua come before it.
-- The reference in Python: policy/limits/windows.py, policy/limits/counter_hash.py.
-- See docs/reference/limits.md#counter-layout and docs/reference/limits.md#rolling-windows.
--
-- Field <group>: the packed header of one group. Unpacked it is a flat table h:
--   h[1] last time, h[2] day, h[3] requests of the day, h[4] settled tokens of the day, then six numbers per log,
--   at i = 5, 11, ...: h[i] kind, h[i+1] total, h[i+2] last time of the oldest closed entry (0: no closed entries),
--   h[i+3] last time of the open entry, h[i+4] its span, h[i+5] its count.
--   Once Redis' clock has stepped back, the first of these sixes is no log: h[5] AHEAD, h[6] how far the group's time is
--   ahead of the clock, h[7] last time before that changed.
--   A usage limit's kind plus COUNT is no log either: h[i+1] is what its calendar window has counted. That of the day's
--   requests and tokens is h[3] and h[4] (COUNT_AT).
-- Field <group>:days: of two other days that counted something, the latest first: day, requests, settled tokens.
-- Field <group>:<kind + COUNT>: the same of other usage limits: the window's number, the count.
-- Field <group>:<kind>: the closed entries (last time, span, count), oldest first. Stale while h[i+2] is 0.
-- The log of a usage limit that counts tokens holds the reservations, each with a lease; one that counts requests has
-- none. A kind that counts tokens, plus MARGIN, is the log of its margins: how much more the calls in flight can cost
-- than was expected of them. These logs are a header's last ones: scripts of versions without margins keep a header's
-- first five logs.
-- Redis hashes every byte of every string that Lua sees, so cost depends on few calls and short strings.

local key, pack, unpack_ = KEYS[1], struct.pack, struct.unpack
local DAY = 86400000
local ENTRY, ENTRY_BYTES = '<I6I2I7', 15
local TAKES, TAKE_BYTES = '<I6I6I6I3', 15  -- revoked through; then per take: time, number, admitted
local lease = 0  -- take.lua and settle.lua set it

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

local time = redis.call('TIME')
local clock_ms = time[1] * 1000 + floor(time[2] / 1000)
local day = floor(clock_ms / DAY)

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

-- Drops the entries that have left the window. An entry of exactly one window ago counts: times are truncated to the
-- millisecond.
local function expire(g, h, i, now)
  local edge = now - (WINDOW[h[i] % MARGIN] or lease)
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
    entries = entries:sub(at)
    closed[field], changed[field] = entries, entries
  end
end

-- Counts events at `now`: in the open entry if all of it is in the same granule, else in a new one. (Entries that were
-- moved may reach over two.)
local function charge(g, h, i, count, granule, now)
  if count == 0 then return end
  local last, open = h[i + 3], h[i + 5]
  if open > 0 and (last - h[i + 4] >= now - now % granule or last == now) then
    h[i + 4], h[i + 5] = h[i + 4] + now - last, open + count
  else
    if open > 0 then
      local entry = pack(ENTRY, last, h[i + 4], open)
      if h[i + 2] == 0 then
        h[i + 2] = last
        local field = ARGV[2 + g] .. ':' .. h[i]
        closed[field], changed[field] = entry, entry
      else
        local entries, field = closed_of(g, h[i])
        entries = entries .. entry
        closed[field], changed[field] = entries, entries
      end
    end
    h[i + 4], h[i + 5] = 0, count
  end
  h[i + 1], h[i + 3] = h[i + 1] + count, now
end

-- The number of the calendar window of a usage limit's kind that has this day.
local function window_of(kind, utc_day)
  return MONTHLY[kind] and month_of(utc_day) or utc_day
end

-- Where the header has what the calendar window has counted.
local function count_at(h, kind)
  return COUNT_AT[kind] or log_at(h, kind + COUNT) + 1
end

-- Brings groups to one time and to the clock's day. Returns how far that time is ahead of the clock, and whether that is
-- to be stored. Needed only where the clock has stepped back or the day changes, so what it needs itself is made inside.
-- The time of a group is Redis' clock, and what that has stepped back since the group was first used (`ahead`). So it
-- never goes back, and entries keep their age.
local function catch_up(heads, first, last)
  local ahead, has_stepped = 0, false

  local function ahead_of(h)
    local stored = h[5] == AHEAD and h[6] or 0
    if h[1] > clock_ms + stored then return h[1] - clock_ms end
    return stored
  end

  -- Makes all entries later by so much, so that they keep their age where the group's time jumps.
  local function move(g, h, by)
    for i = 11, #h, 6 do
      if h[i + 2] > 0 then  -- not what a window has counted
        local entries, field = closed_of(g, h[i])
        local moved = {}
        for e = 1, #entries, ENTRY_BYTES do
          local at, span, count = unpack_(ENTRY, entries, e)
          moved[#moved + 1] = pack(ENTRY, at + by, span, count)
        end
        h[i + 2] = h[i + 2] + by
        entries = table.concat(moved)
        closed[field], changed[field] = entries, entries
      end
      if h[i + 3] > 0 then h[i + 3] = h[i + 3] + by end
    end
  end

  local function set_ahead(g, h)
    local by = ahead - ahead_of(h)
    if h[5] ~= AHEAD then
      for i = #h, 5, -1 do h[i + 6] = h[i] end
      h[5], h[6], h[7], h[8], h[9], h[10] = AHEAD, 0, 0, 0, 0, 0
    end
    if by > 0 then move(g, h, by) end
    h[6], h[7] = ahead, h[1]
    has_stepped = true
  end

  -- Keeps what the two windows counted that have counted something last: a clock that steps over an end and back finds
  -- them again. One that has counted nothing since it was found again keeps its place among them. Windows are packed:
  -- the number in three bytes, the counts. Returns what window `number` has counted, or nil.
  local function leave_window(field, own, has_counted, number)
    local stored, bytes, others, is_kept, again = redis.call('HGET', key, field) or '', #own, '', false, nil
    for e = 1, #stored, bytes do
      local one = stored:sub(e, e + bytes - 1)
      if one == own then is_kept = true elseif one:sub(1, 3) ~= own:sub(1, 3) then others = others .. one end
    end
    local kept = stored
    if not is_kept then kept = (has_counted and own or '') .. others end
    for e = 1, #kept, bytes do
      if unpack_('<I3', kept, e) == number then again = kept:sub(e, e + bytes - 1) end
    end
    kept = kept:sub(1, 2 * bytes)
    if kept ~= stored then changed[field] = kept end
    return again
  end

  local function change_day(g, h)
    local left = h[2]
    h[2] = day
    if left == 0 then return end  -- it is new
    local again = leave_window(
      ARGV[2 + g] .. ':days', pack('<I3I7I7', left, h[3], h[4]), h[3] > 0 or h[4] > 0, day)
    h[3], h[4] = 0, 0
    if again then h[3], h[4] = unpack_('<I7I7', again, 4) end
    for i = 5, #h, 6 do
      local kind = h[i] - COUNT
      if kind > 0 and window_of(kind, left) ~= window_of(kind, day) then
        local own = pack('<I3I7', window_of(kind, left), h[i + 1])
        again = leave_window(ARGV[2 + g] .. ':' .. h[i], own, h[i + 1] > 0, window_of(kind, day))
        h[i + 1] = again and (unpack_('<I7', again, 4)) or 0
      end
    end
  end

  for g = first, last do
    local its_ahead = ahead_of(heads[g])
    if its_ahead > ahead then ahead = its_ahead end
  end
  for g = first, last do
    local h = heads[g]
    if ahead > 0 and (h[5] ~= AHEAD or h[6] ~= ahead) then set_ahead(g, h) end
    h[1] = clock_ms + ahead
    if h[2] ~= day then change_day(g, h) end
  end
  return ahead, has_stepped
end

-- Writes everything with one HSET, and renews the key's expiry once an hour.
local function save(fields, last_written, now)
  for field, entries in pairs(changed) do
    fields[#fields + 1] = field
    fields[#fields + 1] = entries
  end
  redis.call('HSET', key, unpack(fields))
  if last_written < now - now % 3600000 then redis.call('EXPIRE', key, EXPIRY_S) end
end
