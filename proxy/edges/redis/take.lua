-- Admission: all limits of the path pass and all counters are charged, or one limit refuses and nothing is counted.
-- ARGV: struct format | values: lease (ms), number of groups, number of columns; per bound in the order of trial: number
--       of its group, its column, kind, threshold; then the stamp: deadline (ms), number, number up to which all takes
--       are answered | the groups' names | the field of the incarnation's takes | per request and column: its expected
--       tokens, its margin.
-- A column is a type that counts tokens; the first one is TOKEN. Column 0: the bound counts requests, or those in flight.
-- Reply: Redis' clock, how many requests were admitted, number of the bound that refused the rest (0: none), retry after,
--        counted retry after, hard retry after; then for REQUEST and for TOKEN limits: number (0: none), room, reset of
--        the tightest bound; then the time of the groups, which is that of the admission. None admitted and none
--        refused: the take was late or revoked, and nothing was counted.
-- The reference in Python: policy/limits/admission.py, admit(); policy/limits/take_numbers.py.
-- See docs/reference/limits.md#admission.

local max = math.max
local bounds = {unpack_(ARGV[1], ARGV[2])}
local last = #bounds  -- struct.unpack also returns the next position
local last_bound, groups, columns = last - 7, bounds[2], bounds[3]
local number = bounds[last - 2]
if clock_ms > bounds[last - 3] then return {clock_ms, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} end
lease = bounds[1]
local requests = (#ARGV - 3 - groups) / (2 * columns)

-- The incarnation's takes: the number up to which they are revoked; then per unanswered take that ran, newest first:
-- time, number, how many requests it admitted.
local heads = redis.call('HMGET', key, unpack(ARGV, 3, 3 + groups))
local takes, revoked, unanswered, answered = heads[groups + 1], 0, '', bounds[last - 1]
if takes then
  local _, newest
  revoked, _, newest = unpack_('<I6I6I6', takes)
  if number <= revoked then return {clock_ms, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} end
  if newest > answered then
    local at = 7
    repeat at = at + TAKE_BYTES until at > #takes or unpack_('<I6', takes, at + 6) <= answered
    unanswered = takes:sub(7, at - 1)
  end
end

-- All groups of the path get the time of the one that is most ahead, so that one number tells when this take was.
local now, last_written, is_steady, has_stepped = clock_ms, 0, true, false
for g = 1, groups do
  local h = read(heads[g])
  heads[g], last_written = h, h[1]
  if last_written > now or h[2] ~= day or h[5] == AHEAD then is_steady = false end
end
if not is_steady then
  local ahead
  ahead, has_stepped = catch_up(heads, 1, groups)
  now = now + ahead
end

-- The log of each bound that has one: all but a usage limit of requests, and one of calls in flight. Those of margins come after them, when all
-- have their places.
local places, margin_places = {}, {}
for b = 4, last_bound, 4 do
  if bounds[b + 1] > 0 or WINDOW[bounds[b + 2]] then places[b] = log_at(heads[bounds[b]], bounds[b + 2]) end
end

-- The room of each bound. A request costs every bound of a column the same, so the least room of a column decides.
-- most_room: what the calls in flight can cost at most is below twice the threshold.
local huge = math.huge
local rooms, least_room, most_room, tokens, margins = {}, {}, {}, {}, {}
local in_flight, have_places_stepped = {}, false
for c = 0, columns do
  least_room[c], most_room[c], tokens[c], margins[c] = huge, huge, 0, 0
end
for b = 4, last_bound, 4 do
  local g, c, kind = bounds[b], bounds[b + 1], bounds[b + 2]
  local h, i, used = heads[g], places[b], 0
  if i then
    expire(g, h, i, now)
    used = h[i + 1]
  end
  if not WINDOW[kind] then
    if CONCURRENT[kind] then
      local p = read_places(key, ARGV[2 + g] .. PLACES, ARGV[3 + groups]:sub(2, -2), clock_ms)
      in_flight[b], used = p, p.used
      if p.has_stepped then have_places_stepped = true end
    else
      used = used + h[count_at(h, kind)]
    end
  end
  local room = bounds[b + 3] - used
  rooms[b] = room
  if room < least_room[c] then least_room[c] = room end
  if c > 0 then
    local m = log_at(h, kind + MARGIN)
    expire(g, h, m, now)
    margin_places[b] = m
    room = room + bounds[b + 3] - h[m + 1]
    if room < most_room[c] then most_room[c] = room end
  end
end

local admitted, a = 0, 4 + groups

local function has_room()
  if least_room[0] - admitted < 1 then return false end
  for c = 1, columns do
    if least_room[c] - tokens[c] < 1 or most_room[c] - tokens[c] - margins[c] < 1 then return false end
  end
  return true
end

while admitted < requests and has_room() do
  for c = 1, columns do
    tokens[c], margins[c] = tokens[c] + ARGV[a], margins[c] + ARGV[a + 1]
    a = a + 2
  end
  admitted = admitted + 1
end

if admitted > 0 then
  for b = 4, last_bound, 4 do
    local g, c, kind = bounds[b], bounds[b + 1], bounds[b + 2]
    local h, i = heads[g], places[b]
    local cost = c > 0 and tokens[c] or admitted
    rooms[b] = rooms[b] - cost
    if i then
      local granule = (WINDOW[kind] and bounds[b + 3] <= EXACT_UP_TO) and 1 or GRANULE[kind]
      charge(g, h, i, cost, granule, now)
      if c > 0 then charge(g, h, margin_places[b], margins[c], granule, now) end
    elseif in_flight[b] then
      add_take(in_flight[b], number, answered, admitted)
      in_flight[b].renewed = in_flight[b].now
    else
      local at = count_at(h, kind)
      h[at] = h[at] + cost
    end
  end
end

if admitted > 0 or has_stepped or have_places_stepped then  -- a group whose limits are full must not wait for the clock to catch up
  local fields = {}
  for g = 1, groups do
    local h = heads[g]
    h[1] = now
    fields[2 * g - 1], fields[2 * g] = ARGV[2 + g], packed(h)
  end
  if admitted > 0 then
    fields[2 * groups + 1] = ARGV[3 + groups]
    fields[2 * groups + 2] = pack(TAKES, revoked, now, number, admitted) .. unanswered
  end
  for _, p in pairs(in_flight) do changed[p.field] = packed_places(p, ARGV[3 + groups]:sub(2, -2)) end
  save(fields, last_written, now)
end

-- The tightest bound of REQUEST and of TOKEN. From here on the room of a bound of tokens is the lesser one of both sums.
local tight_request, tight_token = 0, 0
for b = 4, last_bound, 4 do
  local c = bounds[b + 1]
  if c > 0 then
    local most = rooms[b] + bounds[b + 3] - heads[bounds[b]][margin_places[b] + 1]
    if most < rooms[b] then rooms[b] = most end
    if c == 1 and (tight_token == 0 or rooms[b] < rooms[tight_token]) then tight_token = b end
  elseif not in_flight[b] and (tight_request == 0 or rooms[b] < rooms[tight_request]) then
    tight_request = b
  end
end

-- How long until the calendar window of a usage limit's kind ends.
local function until_end(kind)
  local next_day = day + 1
  if MONTHLY[kind] then
    local month = month_of(day)
    while month_of(next_day) == month do next_day = next_day + 1 end
  end
  return next_day * DAY - clock_ms
end

local refused_by, retry_after, counted_retry_after, hard_retry_after = 0, 0, 0, 0
if admitted < requests then
  -- When the log has room for a request, if nothing else happens. 0: it has room now.
  local function room_at(g, h, i, threshold)
    local total, at, window = h[i + 1], 0, WINDOW[h[i]] or lease
    if total < threshold then return 0 end
    if h[i + 2] > 0 then
      if total == threshold then return h[i + 2] + window + 1 end
      local entries = closed_of(g, h[i])
      for e = 1, #entries, ENTRY_BYTES do
        local last, _, count = unpack_(ENTRY, entries, e)
        total = total - count
        if total < threshold then return last + window + 1 end
      end
    end
    return h[i + 3] + window + 1
  end

  -- Appends the last time and the count of each entry of a log.
  local function append(entries, g, h, i)
    if h[i + 2] > 0 then
      local closed_entries = closed_of(g, h[i])
      for e = 1, #closed_entries, ENTRY_BYTES do
        local at, _, count = unpack_(ENTRY, closed_entries, e)
        entries[#entries + 1] = {at, count}
      end
    end
    if h[i + 5] > 0 then entries[#entries + 1] = {h[i + 3], h[i + 5]} end
  end

  -- The same for a log and its margins together.
  local function joint_room_at(g, h, i, m, threshold)
    local total, at, entries = h[i + 1] + h[m + 1], 0, {}
    if total < threshold then return 0 end
    append(entries, g, h, i)
    append(entries, g, h, m)
    table.sort(entries, function(one, other) return one[1] < other[1] end)
    for e = 1, #entries do
      total, at = total - entries[e][2], entries[e][1]
      if total < threshold then break end
    end
    return at + (WINDOW[h[i]] or lease) + 1
  end

  -- How long until what is counted is below `most`. Settled tokens count until their calendar window ends.
  local function wait(kind, settled, most, when)
    if WINDOW[kind] then return when(most) - now end
    local after_end = max(until_end(kind), when(most) - now)
    if settled >= most then return after_end end
    return math.min(after_end, when(most - settled) - now)
  end

  -- The three waits of this bound: retry after, counted retry after, hard retry after.
  local function waits(b)
    local g, kind, threshold = bounds[b], bounds[b + 2], bounds[b + 3]
    local h, i, m = heads[g], places[b], margin_places[b]
    if in_flight[b] then return RETRY_MS, RETRY_MS, 0 end
    if not i then return until_end(kind), until_end(kind), 0 end
    local settled = WINDOW[kind] and 0 or h[count_at(h, kind)]
    local retry = wait(kind, settled, threshold, function(most) return room_at(g, h, i, most) end)
    if not m then return retry, retry, 0 end
    local joint = wait(kind, settled, 2 * threshold, function(most) return joint_room_at(g, h, i, m, most) end)
    local hard = not WINDOW[kind] and settled >= threshold and until_end(kind) or 0
    return max(retry, joint), hard, hard
  end

  for b = last_bound, 4, -4 do
    if rooms[b] < 1 then
      refused_by = b
      local wait, counted, hard = waits(b)
      if wait > retry_after then retry_after = wait end
      if counted > counted_retry_after then counted_retry_after = counted end
      if hard > hard_retry_after then hard_retry_after = hard end
    end
  end
end

-- How long until nothing counts against the bound: until the newest entry leaves, or until the calendar window ends.
local function reset(b)
  if b == 0 then return 0 end
  local kind = bounds[b + 2]
  if not WINDOW[kind] then return until_end(kind) end
  local h, i, m = heads[bounds[b]], places[b], margin_places[b]
  local newest = h[i + 1] > 0 and h[i + 3] or 0
  if m and h[m + 1] > 0 then newest = max(newest, h[m + 3]) end
  return newest > 0 and newest + WINDOW[kind] + 1 - now or 0
end

return {
  clock_ms, admitted, refused_by / 4, retry_after, counted_retry_after, hard_retry_after,
  tight_request / 4, max(0, rooms[tight_request] or 0), reset(tight_request),
  tight_token / 4, max(0, rooms[tight_token] or 0), reset(tight_token), now,
}
