-- Settlement: replaces estimates by actual figures, each settlement once.
-- ARGV: struct format | values: lease (ms), then per settlement: number, admission time, reserved, margin, actual,
--       flags (1 admitted without Redis, 2 given back), number of buckets; per bucket: number of its group, mask of
--       the limits that bind there (policy/limits/counter_layout.py) | the groups' names | the incarnation's marker
--       field.
-- Reply: how many settlements were new. Numbers rise within a batch; the marker holds the last number applied.
-- The reference in Python: policy/limits/admission.py, settle(). See docs/reference/limits.md#settlement.

local values = {unpack_(ARGV[1], ARGV[2])}
lease = values[1]
local groups, marker = #ARGV - 3, ARGV[#ARGV]

local heads = redis.call('HMGET', key, unpack(ARGV, 3))
local applied = heads[groups + 1] and unpack_('<I6', heads[groups + 1]) or 0
local last_written = 0
for g = 1, groups do
  local h = read(heads[g])
  heads[g], last_written = h, h[1]
  if last_written > clock_ms or h[2] ~= day or h[5] == AHEAD then
    catch_up(heads, g, g)
  else
    h[1] = clock_ms
  end
end

-- The index of each log that this batch has used, by 256 * g + kind, so that each log is expired once. A new log may
-- move the others.
local places = {}

local function live_log(g, kind)
  local h, i = heads[g], places[256 * g + kind]
  if not i then
    local is_new
    i, is_new = log_at(h, kind)
    if is_new then places = {} end
    places[256 * g + kind] = i
    expire(g, h, i, h[1])
  end
  return h, i
end

-- Takes up to count events out of the entry that holds the instant. Does nothing if that entry has left the window.
-- Entries of before a step of the clock may have been moved: then it finds an older one or none, and counts too much.
local function refund(g, kind, count, instant)
  local h, i = live_log(g, kind)
  if h[i + 5] > 0 and instant >= h[i + 3] - h[i + 4] then
    if instant <= h[i + 3] then
      local back = math.min(count, h[i + 5])
      h[i + 1], h[i + 5] = h[i + 1] - back, h[i + 5] - back
    end
    return
  end
  if h[i + 2] == 0 then return end
  local entries, field = closed_of(g, kind)
  for e = 1, #entries, ENTRY_BYTES do
    local last, span, open = unpack_(ENTRY, entries, e)
    if instant < last - span then return end
    if instant <= last then
      local back = math.min(count, open)
      h[i + 1] = h[i + 1] - back
      local left = back < open and pack(ENTRY, last, span, open - back) or ''
      entries = entries:sub(1, e - 1) .. left .. entries:sub(e + ENTRY_BYTES)
      h[i + 2] = entries == '' and 0 or (unpack_(ENTRY, entries))
      closed[field], changed[field] = entries, entries
      return
    end
  end
end

local function charge_excess(g, kind, count, exact)
  local h, i = live_log(g, kind)
  charge(g, h, i, count, exact and 1 or GRANULE[kind], h[1])
end

-- The kinds of each mask that this batch has used: those that count requests, those that count tokens; after each kind,
-- whether its log is the exact one. For the bits see policy/limits/counter_layout.py, kind_mask().
local requests_of, tokens_of = {}, {}

local function read_mask(mask)
  local requests, tokens = {}, {}
  for kind = 1, #GRANULE do
    local page = floor((kind - 1) / MASK_PAGE)
    local bit = 2 ^ (kind - 1 + MASK_PAGE * page)
    if mask % (2 * bit) >= bit then
      local kinds = REQUESTS[kind] and requests or tokens
      kinds[#kinds + 1] = kind
      bit = bit * 2 ^ MASK_PAGE
      kinds[#kinds + 1] = mask % (2 * bit) >= bit
    end
  end
  requests_of[mask], tokens_of[mask] = requests, tokens
end

-- Returns the request of a call that was never dispatched. Charges one that was admitted without Redis, if its window
-- still lasts. The time of such an admission is a machine's, to compare with the clock.
local function correct_requests(g, mask, admitted_at, given_back)
  local kinds, h, counted_at = requests_of[mask], heads[g], admitted_at
  if given_back and h[5] == AHEAD then  -- the window in which it counted is known if the clock has not stepped since
    counted_at = admitted_at > h[7] and admitted_at - h[6] or 0
  end
  for k = 1, #kinds, 2 do
    local kind, window = kinds[k], WINDOW[kinds[k]]
    if not window then
      if window_of(kind, floor(counted_at / DAY)) == window_of(kind, day) then
        local at = count_at(h, kind)
        h[at] = math.max(0, h[at] + (given_back and -1 or 1))
      end
    elseif given_back then
      refund(g, kind, 1, admitted_at)
    elseif admitted_at + window >= clock_ms then
      charge_excess(g, kind, 1, kinds[k + 1])
    end
  end
end

local function correct_tokens(g, mask, admitted_at, reserved, margin, actual, without_redis)
  local kinds, h = tokens_of[mask], heads[g]
  for k = 1, #kinds, 2 do
    local kind, window = kinds[k], WINDOW[kinds[k]]
    if margin > 0 then refund(g, kind + MARGIN, margin, admitted_at) end
    if not window then
      refund(g, kind, reserved, admitted_at)
      local at = count_at(h, kind)
      h[at] = h[at] + actual
    elseif actual < reserved then
      refund(g, kind, reserved - actual, admitted_at)
    elseif not without_redis or admitted_at + window >= clock_ms then
      charge_excess(g, kind, actual - reserved, kinds[k + 1])
    end
  end
end

local fresh, highest, v = 0, applied, 2
while v < #values do
  local number, admitted_at, reserved, margin, actual, flags, buckets =
    values[v], values[v + 1], values[v + 2], values[v + 3], values[v + 4], values[v + 5], values[v + 6]
  v = v + 7
  if number > highest then
    local without_redis, given_back = flags % 2 == 1, flags >= 2
    if without_redis then reserved, margin = 0, 0 end
    fresh, highest = fresh + 1, number
    for b = v, v + 2 * buckets - 2, 2 do
      if not tokens_of[values[b + 1]] then read_mask(values[b + 1]) end
      if flags > 0 then correct_requests(values[b], values[b + 1], admitted_at, given_back) end
      correct_tokens(values[b], values[b + 1], admitted_at, reserved, margin, actual, without_redis)
    end
  end
  v = v + 2 * buckets
end

if fresh > 0 then
  local now = heads[groups][1]
  local fields = {marker, pack('<I6I6', highest, now)}
  for g = 1, groups do
    fields[2 * g + 1], fields[2 * g + 2] = ARGV[2 + g], packed(heads[g])
  end
  save(fields, last_written, now)
end
return fresh
