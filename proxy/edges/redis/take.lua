-- Admission: all limits of the path pass and all counters are charged, or one limit refuses and nothing is counted.
-- ARGV: struct format | values: lease (ms), number of groups; per bound in the order of trial: number of its group,
--       kind, threshold; then the stamp: deadline (ms), number, number up to which all takes are answered | the groups'
--       names | the field of the incarnation's takes | one token estimate per request.
-- Reply: now, how many requests were admitted, number of the bound that refused the rest (0: none), retry after,
--        counted retry after, hard retry after; then for REQUEST and for TOKEN limits: number (0: none), room, reset of
--        the tightest bound. None admitted and none refused: the take was late or revoked, and nothing was counted.
-- The reference in Python: policy/limits/admission.py, admit(); policy/limits/take_numbers.py.
-- See docs/reference/limits.md#admission.

local max = math.max
local bounds = {unpack_(ARGV[1], ARGV[2])}
local last = #bounds  -- struct.unpack also returns the next position
local last_bound, groups = last - 6, bounds[2]
local number, now = bounds[last - 2], clock()
if now > bounds[last - 3] then return {now, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} end
WINDOW[6] = bounds[1]
local requests = #ARGV - 3 - groups

-- The incarnation's takes: the number up to which they are revoked; then per unanswered take that ran, newest first:
-- time, number, how many requests it admitted.
local heads = redis.call('HMGET', key, unpack(ARGV, 3, 3 + groups))
local takes, revoked, unanswered = heads[groups + 1], 0, ''
if takes then
  local answered, _, newest = bounds[last - 1], nil, nil
  revoked, _, newest = unpack_('<I6I6I6', takes)
  if number <= revoked then return {now, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} end
  if newest > answered then
    local at = 7
    repeat at = at + TAKE_BYTES until at > #takes or unpack_('<I6', takes, at + 6) <= answered
    unanswered = takes:sub(7, at - 1)
  end
end
for g = 1, groups do
  local h = read(heads[g])
  heads[g] = h
  if h[1] > now then now = h[1] end
end
local last_written = heads[groups][1]
local day = floor(now / DAY)
for g = 1, groups do roll(heads[g], now, day) end

-- The room of each bound, and the tightest bound of each type. Kinds 1, 2 and 5 count requests, 3, 4 and 6 tokens.
local rooms, places = {}, {}
local tight_request, tight_token = 0, 0
for b = 3, last_bound, 3 do
  local g, kind = bounds[b], bounds[b + 1]
  local h, used, i = heads[g], 0, 0
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
    if tight_request == 0 or room < rooms[tight_request] then tight_request = b end
  elseif tight_token == 0 or room < rooms[tight_token] then
    tight_token = b
  end
end

-- A request costs every bound of a type the same, so the tightest bound of each type decides.
local request_room, token_room = rooms[tight_request] or math.huge, rooms[tight_token] or math.huge
local admitted, tokens = 0, 0
while admitted < requests and request_room - admitted >= 1 and token_room - tokens >= 1 do
  tokens = tokens + ARGV[4 + groups + admitted]
  admitted = admitted + 1
end

if admitted > 0 then
  for b = 3, last_bound, 3 do
    local g, kind = bounds[b], bounds[b + 1]
    local h = heads[g]
    local cost = (kind < 3 or kind == 5) and admitted or tokens
    rooms[b] = rooms[b] - cost
    if kind == 5 then
      h[3] = h[3] + cost
    else
      local granule = (kind < 5 and bounds[b + 2] <= 64) and 1 or GRANULE[kind]
      charge(g, h, places[b], cost, granule, now)
    end
  end
  local fields = {ARGV[3 + groups], pack(TAKES, revoked, now, number, admitted) .. unanswered}
  for g = 1, groups do
    fields[2 * g + 1], fields[2 * g + 2] = ARGV[2 + g], packed(heads[g])
  end
  save(fields, last_written, now)
end

local midnight = DAY - now % DAY

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

  -- The three waits of this bound: retry after, counted retry after, hard retry after.
  local function waits(b)
    local g, kind, threshold = bounds[b], bounds[b + 1], bounds[b + 2]
    local h, i = heads[g], places[b]
    if kind == 5 then return midnight, midnight, 0 end
    if kind < 5 then
      local wait = room_at(g, h, i, threshold) - now
      return wait, kind < 3 and wait or 0, 0
    end
    local after_midnight = max(midnight, room_at(g, h, i, threshold) - now)
    if h[4] >= threshold then return after_midnight, midnight, midnight end
    return math.min(after_midnight, room_at(g, h, i, threshold - h[4]) - now), 0, 0
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
  local i = places[b]
  if not i then return 0 end
  if bounds[b + 1] > 4 then return midnight end
  local h = heads[bounds[b]]
  return h[i + 1] > 0 and h[i + 3] + WINDOW[h[i]] + 1 - now or 0
end

return {
  now, admitted, refused_by / 3, retry_after, counted_retry_after, hard_retry_after,
  tight_request / 3, max(0, rooms[tight_request] or 0), reset(tight_request),
  tight_token / 3, max(0, rooms[tight_token] or 0), reset(tight_token),
}
