-- One workspace's asynchronous requests. This text is prepended to every other script of the folder; scripts.py puts
-- before it what comes from Python: MOVES and OUTCOMES by event, ENDINGS, LEASE, STANDING, KEPT, UNSUBMITTED, GAP (ms),
-- TRIES; and makes each script a function, which answer() calls.
-- Every change of a phase goes through move(), so no script can make one that proxy/async_requests/states.py forbids.
--
-- KEYS[1]: "tga:{workspace}:", with which all keys of the workspace begin, so that they are in one slot. KEYS[2] is
-- none of them either: see _MISSING in commands.py.
--   r:<id>       hash: where the request stands (FIELDS). After its end: what `state` shows, for an hour
--   i:<id>       hash: what it was given: input, path, hook. Without input and path once its outcome is decided
--   b:<id>       hash: the pieces of a large input, by number, as long as i:<id> has the input. They come first
--   a:<id>       hash: the chunks of the model's answer, by number
--   q:<dep>:<s>  stream, group "w", of requests that wait for an attempt or are in one. s: 0, 1, 2 by priority,
--                p paused ones whose delay is over, x attempts whose start Redis has lost
--   z:<dep>      set of paused requests whose delay is not over
--   hooks        stream, group "w", of outcomes that are told to webhooks now
--   later        zset of requests, by the time at which the sweep has to look at them
--   held         zset of streams that have pending entries, by the time at which the first lease may be over
--   d:<dep>      hash: requests by phase (QUEUED ones by priority), `due` in stream p; when last `ready`, `parked`
--   deployments  hash "model dep" -> requests that have not ended;  startable: those that an attempt could begin for
--   totals       hash: `queued` and `answers` in bytes; `grows`: whose answer may exceed their bound; `hooks` that
--                nobody holds
--   uncounted    hash "model dep outcome" -> requests that have ended here, until a sweep tells somebody who counts
--   clock        hash: the workspace's time, as long as a request has not ended (see below)
-- A counter that is 0 does not exist, nor does an empty stream. A pending entry is a lease: of an attempt or a delivery.
--
-- All times are the workspace's own, which is Redis' clock until that steps. Then the workspace's time goes on as if it had
-- not: `ahead` is how far it is ahead of the clock, negative after a step forward. A step back shows itself, because the
-- clock is before the last time `seen`. A step forward is told from time that has passed by the last two arguments of
-- every script: what time it should be by the caller's monotonic clock, and by how much more it can be ('': the caller
-- does not know). What other callers have seen here has passed, whatever one of them knows: it may have been suspended.
-- What callers are told, and keep for an hour, are times of Redis' clock.

local call, floor, P, GROUP = redis.call, math.floor, KEYS[1], 'w'
local TOTALS, LATER, HELD, HOOKS = P .. 'totals', P .. 'later', P .. 'held', P .. 'hooks'
local DEPLOYMENTS, STARTABLE = P .. 'deployments', P .. 'startable'
local FIELDS = {'phase', 'dep', 'model', 'prio', 'hook', 'created', 'until', 'max', 'size', 'attempt', 'begun',
  'deadline', 'stream', 'entry', 'holder', 'stored', 'tries', 'outcome', 'decided', 'code', 'text', 'at'}
local NUMBERS = {'created', 'until', 'max', 'size', 'attempt', 'begun', 'deadline', 'stored', 'tries', 'decided', 'at'}
local CLOCK = P .. 'clock'
local time = redis.call('TIME')
local clock_ms = time[1] * 1000 + floor(time[2] / 1000)
local more, expected = tonumber(table.remove(ARGV)), tonumber(table.remove(ARGV))
local clock = call('HMGET', CLOCK, 'seen', 'ahead', 'base')
local seen, ahead, base = tonumber(clock[1] or clock_ms), tonumber(clock[2] or 0), tonumber(clock[3] or 0)
local now, has_stepped = clock_ms + ahead, false
if now < seen or (expected and now > math.max(expected, seen) + more) then
  now, has_stepped = math.max(math.min(now, expected or now), seen), true
  ahead = now - clock_ms
end
local is_doubtful = not expected and now - seen >= GAP  -- time has passed here, or the clock has stepped

-- A pending entry has the time `now - base`, because Redis allows no later one than its clock's. Where the workspace's time
-- gets further ahead than ever, all leases begin anew.
if ahead > base then
  base = ahead
  for _, key in ipairs(call('ZRANGE', HELD, 0, -1)) do
    for _, pending in ipairs(call('XPENDING', key, GROUP, '-', '+', 100000)) do
      call('XCLAIM', key, GROUP, pending[2], 0, pending[1], 'TIME', clock_ms, 'JUSTID')
    end
  end
end
local SKEW = base - ahead  -- how much longer entries are idle for Redis; tests, whose clock is not Redis' own, replace it

-- Redis refuses a script for want of memory only if its first write needs memory. These free some in the end.
local function frees_memory()
  call('DEL', P .. 'nothing')
end

local function add(key, field, by)
  local sum = call('HINCRBY', key, field, by)
  if sum == 0 then call('HDEL', key, field) end
  return sum
end

local function hint()
  redis.pcall('PUBLISH', 'tga:hints', P:sub(6, -3))  -- may be forbidden: hints may be lost
end

local function request(id)
  local values = call('HMGET', P .. 'r:' .. id, unpack(FIELDS))
  if not values[1] then return nil end
  local r = {id = id, key = P .. 'r:' .. id, changes = {}}
  for i, name in ipairs(FIELDS) do r[name] = values[i] end
  for _, name in ipairs(NUMBERS) do r[name] = tonumber(r[name] or 0) end
  if r.phase == 'ended' and clock_ms >= r.at + KEPT then return nil end
  return r
end

local function set(r, name, value)
  local changes = r.changes
  r[name], changes[#changes + 1], changes[#changes + 2] = value, name, value
end

local function save(r)
  if #r.changes > 0 then call('HSET', r.key, unpack(r.changes)) end
  r.changes = {}
end

-- Writes r anew, as it is. A client that then waits for a replica on its connection waits for what others wrote, too.
local function touch(r)
  frees_memory()
  call('HSET', r.key, 'phase', r.phase)
end

-- Counts r in the figures of its deployment, or takes it out of them.
local function tally(r, by)
  if r.phase ~= 'ended' then add(P .. 'd:' .. r.dep, r.phase == 'queued' and r.prio or r.phase, by) end
end

-- Moves r to the phase that follows the event. Call it before all other writes: it fails if the move is illegal.
local function move(r, event)
  local from, to = r.phase, MOVES[r.phase] and MOVES[r.phase][event]
  if not to then error('illegal move: ' .. r.phase .. ', ' .. event) end
  if to == 'delivering' and r.hook == '' then to = 'ended' end
  call('ZREM', LATER, r.id)
  if from == 'paused' and r.entry == '' then call('SREM', P .. 'z:' .. r.dep, r.id) end
  if from == 'queued' then add(TOTALS, 'queued', 0 - r.size) end
  tally(r, -1)
  set(r, 'phase', to)
  tally(r, 1)
  if OUTCOMES[event] then set(r, 'outcome', OUTCOMES[event]) end
  if from == 'queued' or to == 'ended' then set(r, 'at', now) end
end

-- The key of the stream in which r has its entry.
local function stream_of(r)
  return r.stream == 'hooks' and HOOKS or P .. 'q:' .. r.dep .. ':' .. r.stream
end

-- Counts an entry that nobody holds.
local function waiting(r, by)
  if r.stream == 'hooks' then
    add(TOTALS, 'hooks', by)
  else
    add(STARTABLE, r.model .. ' ' .. r.dep, by)
    if r.stream == 'p' then add(P .. 'd:' .. r.dep, 'due', by) end
  end
end

-- Appends r to a stream, for whoever reads it next.
local function put(r, stream)
  set(r, 'stream', stream)
  local key = stream_of(r)
  if call('EXISTS', key) == 0 then call('XGROUP', 'CREATE', key, GROUP, '0', 'MKSTREAM') end
  set(r, 'entry', call('XADD', key, '*', 'id', r.id))
  set(r, 'holder', '')
  waiting(r, 1)
end

local function renew(r)
  call('XCLAIM', stream_of(r), GROUP, r.holder, 0, r.entry, 'TIME', now - base, 'FORCE', 'JUSTID')
end

-- The holder has r's entry from now on.
local function hold(r, holder)
  waiting(r, -1)
  set(r, 'holder', holder)
  renew(r)
  call('ZADD', HELD, 'NX', now + LEASE, stream_of(r))
end

-- The request of the stream's next entry, held. Only for streams in which one waits: a read creates a consumer.
local function read(key, holder)
  local entry = call('XREADGROUP', 'GROUP', GROUP, holder, 'COUNT', 1, 'STREAMS', key, '>')[1][2][1]
  local r = request(entry[2][2])
  hold(r, holder)
  return r
end

-- Takes r out of its stream. A consumer ends with what it holds, a stream with its last entry.
local function drop(r)
  if r.entry == '' then return end
  local key = stream_of(r)
  call('XDEL', key, r.entry)
  if r.holder == '' then
    waiting(r, -1)
  else
    call('XACK', key, GROUP, r.entry)
    if #call('XPENDING', key, GROUP, '-', '+', 1, r.holder) == 0 then
      call('XGROUP', 'DELCONSUMER', key, GROUP, r.holder)
    end
  end
  if call('XLEN', key) == 0 then
    call('DEL', key)
    call('ZREM', HELD, key)
  end
  set(r, 'stream', '')
  set(r, 'entry', '')
  set(r, 'holder', '')
end

local function forget_answer(r)
  call('UNLINK', P .. 'a:' .. r.id)
  if r.stored > 0 then
    add(TOTALS, 'answers', -r.stored)
    set(r, 'stored', 0)
  end
  if call('HGET', TOTALS, 'grows') == r.id then call('HDEL', TOTALS, 'grows') end
end

-- r has ended: keeps what `state` shows, and that for an hour.
local function close(r)
  drop(r)
  forget_answer(r)
  call('UNLINK', P .. 'i:' .. r.id, P .. 'b:' .. r.id, r.key)
  call('HSET', r.key, 'phase', r.phase, 'dep', r.dep, 'model', r.model, 'hook', r.hook, 'created', r.created - ahead,
    'attempt', r.attempt, 'outcome', r.outcome, 'code', r.code or '', 'text', r.text or '', 'at', r.at - ahead)
  call('PEXPIRE', r.key, KEPT)
  if add(DEPLOYMENTS, r.model .. ' ' .. r.dep, -1) == 0 then call('PEXPIRE', P .. 'd:' .. r.dep, STANDING) end
end

-- The outcome of r is known. It is told to the webhook, if there is one.
local function decide(r, event, code, text)
  move(r, event)
  drop(r)
  set(r, 'code', code or '')
  set(r, 'text', text or '')
  set(r, 'decided', now)
  if event ~= 'succeed' then forget_answer(r) end
  if r.phase == 'ended' then return close(r) end
  call('HDEL', P .. 'i:' .. r.id, 'input', 'path', 'pieces')
  call('UNLINK', P .. 'b:' .. r.id)
  put(r, 'hooks')
  save(r)
  hint()
end

-- Lets r, which is paused, be started.
local function resume(r)
  put(r, 'p')
  call('ZADD', LATER, r.deadline, r.id)
  save(r)
  hint()
end

local function pause(r, delay)
  move(r, 'pause')
  drop(r)
  forget_answer(r)
  if delay == 0 then return resume(r) end
  call('SADD', P .. 'z:' .. r.dep, r.id)
  call('ZADD', LATER, now + delay, r.id)
  save(r)
end

-- Begins an attempt of r, whose entry the holder has.
local function begin(r, attempt, timeout)
  move(r, 'start')
  set(r, 'attempt', attempt)
  if r.begun == 0 then
    set(r, 'begun', now)
    set(r, 'deadline', now + timeout)
  end
  save(r)
end

-- Has the next sweep report that r has ended. For ends that no worker brings about.
local function count_end(r)
  if r.phase == 'ended' then add(P .. 'uncounted', r.model .. ' ' .. r.dep .. ' ' .. r.outcome, 1) end
end

-- Decides r if it has waited too long. Returns whether it has.
local function decided_late(r)
  if r.phase == 'queued' and now >= r['until'] then
    local ready = tonumber(call('HGET', P .. 'd:' .. r.dep, 'ready') or 0)
    decide(r, 'expire', unpack(ready < r.created and ENDINGS.never_ready or ENDINGS.never_free))
  elseif r.phase == 'paused' and now >= r.deadline then
    decide(r, 'fail', unpack(ENDINGS.out_of_time))
  else
    return false
  end
  count_end(r)
  return true
end

-- Takes r from its holder. Returns whether that has decided its outcome.
local function take_back(r)
  if r.phase == 'running' then
    if r.attempt < r.max and now < r.deadline then
      pause(r, 0)
      return false
    end
    decide(r, 'fail', unpack(r.attempt < r.max and ENDINGS.out_of_time or ENDINGS.worker_lost))
    count_end(r)
    return true
  elseif r.tries < TRIES then
    drop(r)
    put(r, 'hooks')
    save(r)
  else
    move(r, 'give up')
    close(r)
    count_end(r)
  end
  return false
end

-- The request if the holder has this attempt of it. Redis may have lost the start of an attempt in a crash: then the
-- attempt begins again here. `repeated`: what follows was acknowledged once, so it outweighs what others began since.
local function held_attempt(id, attempt, holder, timeout, repeated)
  local r = request(id)
  if not r then return nil end
  if r.phase == 'running' then
    if r.attempt == attempt and r.holder == holder then return r end
    if not repeated or r.attempt > attempt then return nil end
    pause(r, 0)
  elseif (r.phase ~= 'queued' and r.phase ~= 'paused') or r.attempt >= attempt then
    return nil
  end
  call('ZREM', LATER, id)
  if r.phase == 'paused' and r.entry == '' then call('SREM', P .. 'z:' .. r.dep, r.id) end
  drop(r)
  put(r, 'x')
  hold(r, holder)
  begin(r, attempt, timeout)
  return r
end

-- The request if the holder has this delivery of it. Redis may have lost that it began.
local function held_delivery(id, tries, holder, repeated)
  local r = request(id)
  if not r or r.phase ~= 'delivering' then return nil end
  if r.tries == tries and r.holder == holder then return r end
  if r.tries < tries or (repeated and r.tries == tries and r.holder ~= '') then
    call('ZREM', LATER, id)
    drop(r)
    set(r, 'tries', tries)
    put(r, 'hooks')
    hold(r, holder)
    save(r)
    return r
  end
  return nil
end

-- Keeps the workspace's time, once a second or when it has stepped. Where Redis has no memory for it, the next script does.
local function keep_time()
  if call('EXISTS', DEPLOYMENTS) == 0 then
    if clock[1] then call('DEL', CLOCK) end
  elseif has_stepped or not clock[1] or (not is_doubtful and now - seen >= 1000) then
    redis.pcall('HSET', CLOCK, 'seen', now, 'ahead', ahead, 'base', base)
  end
end

-- Runs a script. Replies the workspace's time, and what the script does.
local function answer(script)
  local reply = script()
  keep_time()
  return {now, reply or false}
end
