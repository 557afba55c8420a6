-- Admission: all limits of the path pass and all counters are charged, or one limit refuses and nothing is counted.
-- ARGV: struct format | values: lease (ms), number of groups; per bound in the order of trial: number of its group,
--       kind, threshold; then the stamp: deadline (ms), number, number up to which all takes are answered | the groups'
--       names | the field of the incarnation's takes | per request: its expected tokens, its margin.
-- Reply: Redis' clock, how many requests were admitted, number of the bound that refused the rest (0: none), retry after,
--        counted retry after, hard retry after; then for REQUEST and for TOKEN limits: number (0: none), room, reset of
--        the tightest bound; then the time of the groups, which is that of the admission. None admitted and none
--        refused: the take was late or revoked, and nothing was counted.
-- The reference in Python: policy/limits/admission.py, admit(); policy/limits/take_numbers.py.
-- See docs/reference/limits.md#admission.

local max = math.max
local bounds = {unpack_(ARGV[1], ARGV[2])}
local last = #bounds  -- struct.unpack also returns the next position
local last_bound, groups = last - 6, bounds[2]
local number = bounds[last - 2]
if clock_ms > bounds[last - 3] then return {clock_ms, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} end
WINDOW[6] = bounds[1]
local requests = (#ARGV - 3 - groups) / 2

-- The incarnation's takes: the number up to which they are revoked; then per unanswered take that ran, newest first:
-- time, number, how many requests it admitted.
local heads = redis.call('HMGET', key, unpack(ARGV, 3, 3 + groups))
local takes, revoked, unanswered = heads[groups + 1], 0, ''
if takes then
  local answered, _, newest = bounds[last - 1], nil, nil
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

-- The room of each bound. Kinds 1, 2 and 5 count requests, 3, 4 and 6 tokens. A request costs every bound of a type
-- the same, so the least room of a type decides. most_room: what the calls in flight can cost at most is below twice
-- the threshold.
local huge = math.huge
local rooms, places, margin_places = {}, {}, {}
local request_room, token_room, most_room = huge, huge, huge
for b = 3, last_bound, 3 do
  local g, kind = bounds[b], bounds[b + 1]
  local h, used, i = heads[g], 0, nil
  if kind == 5 then
    used = h[3]
  else
    i = log_at(h, kind)
    expire(g, h, i, now)
    used = h[i + 1]
    if kind == 6 then used = used + h[4] end
  end
  local room = bounds[b + 2] - used
  rooms[b], places[b] = room, i
  if kind < 3 or kind == 5 then
    if room < request_room then request_room = room end
  elseif room < token_room then
    token_room = room
  end
end
for b = 3, last_bound, 3 do  -- after the logs of all kinds have their places
  local g, kind = bounds[b], bounds[b + 1]
  if kind == 3 or kind == 4 or kind == 6 then
    local h = heads[g]
    local i = log_at(h, kind + MARGIN)
    expire(g, h, i, now)
    margin_places[b] = i
    local room = rooms[b] + bounds[b + 2] - h[i + 1]
    if room < most_room then most_room = room end
  end
end

local admitted, tokens, margin, a = 0, 0, 0, 4 + groups
while admitted < requests and request_room - admitted >= 1 and token_room - tokens >= 1
  and most_room - tokens - margin >= 1 do
  tokens, margin = tokens + ARGV[a], margin + ARGV[a + 1]
  admitted, a = admitted + 1, a + 2
end

if admitted > 0 then
  for b = 3, last_bound, 3 do
    local g, kind = bounds[b], bounds[b + 1]
    local h, m = heads[g], margin_places[b]
    local cost = m and tokens or admitted
    rooms[b] = rooms[b] - cost
    if kind == 5 then
      h[3] = h[3] + cost
    else
      local granule = (kind < 5 and bounds[b + 2] <= 64) and 1 or GRANULE[kind]
      charge(g, h, places[b], cost, granule, now)
      if m then charge(g, h, m, margin, granule, now) end
    end
  end
end

if admitted > 0 or has_stepped then  -- a group whose limits are full must not wait for the clock to catch up
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
  save(fields, last_written, now)
end

-- The tightest bound of each type. From here on the room of a TOKEN bound is the lesser one of both sums.
local tight_request, tight_token = 0, 0
for b = 3, last_bound, 3 do
  local m = margin_places[b]
  if m then
    local most = rooms[b] + bounds[b + 2] - heads[bounds[b]][m + 1]
    if most < rooms[b] then rooms[b] = most end
    if tight_token == 0 or rooms[b] < rooms[tight_token] then tight_token = b end
  elseif tight_request == 0 or rooms[b] < rooms[tight_request] then
    tight_request = b
  end
end

local midnight = DAY - clock_ms % DAY

local refused_by, retry_after, counted_retry_after, hard_retry_after = 0, 0, 0, 0
if admitted < requests then
  -- When the log has room for a request, if nothing else happens. 0: it has room now.
  local function room_at(g, h, i, threshold)
    local total, at, window = h[i + 1], 0, WINDOW[h[i]]
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
    return at + WINDOW[h[i]] + 1
  end

  -- How long until what is counted is below `most`. Settled tokens of a day count until midnight.
  local function wait(kind, settled, most, when)
    if kind < 5 then return when(most) - now end
    local after_midnight = max(midnight, when(most) - now)
    if settled >= most then return after_midnight end
    return math.min(after_midnight, when(most - settled) - now)
  end

  -- The three waits of this bound: retry after, counted retry after, hard retry after.
  local function waits(b)
    local g, kind, threshold = bounds[b], bounds[b + 1], bounds[b + 2]
    local h, i, m = heads[g], places[b], margin_places[b]
    if kind == 5 then return midnight, midnight, 0 end
    local retry = wait(kind, h[4], threshold, function(most) return room_at(g, h, i, most) end)
    if not m then return retry, retry, 0 end
    local joint = wait(kind, h[4], 2 * threshold, function(most) return joint_room_at(g, h, i, m, most) end)
    local hard = kind == 6 and h[4] >= threshold and midnight or 0
    return max(retry, joint), hard, hard
  end

  for b = last_bound, 3, -3 do
    if rooms[b] < 1 then
      refused_by = b
      local wait, counted, hard = waits(b)
      if wait > retry_after then retry_after = wait end
      if counted > counted_retry_after then counted_retry_after = counted end
      if hard > hard_retry_after then hard_retry_after = hard end
    end
  end
end

-- How long until nothing counts against the bound: until the newest entry leaves, or until midnight.
local function reset(b)
  if b == 0 then return 0 end
  if bounds[b + 1] > 4 then return midnight end
  local h, i, m = heads[bounds[b]], places[b], margin_places[b]
  local newest = h[i + 1] > 0 and h[i + 3] or 0
  if m and h[m + 1] > 0 then newest = max(newest, h[m + 3]) end
  return newest > 0 and newest + WINDOW[bounds[b + 1]] + 1 - now or 0
end

return {
  clock_ms, admitted, refused_by / 3, retry_after, counted_retry_after, hard_retry_after,
  tight_request / 3, max(0, rooms[tight_request] or 0), reset(tight_request),
  tight_token / 3, max(0, rooms[tight_token] or 0), reset(tight_token), now,
}
