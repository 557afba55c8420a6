-- What a tree spends: exact amounts in limbs, reservations and what they hold of each group, names of windows.
-- This text comes before the spend scripts of proxy and control; script_constants.py and month.lua come before it.
-- The layout and the reference in Python: policy/spend/spend_hash.py, policy/spend/spend_book.py.
-- See docs/reference/money.md#how-spend-is-counted.
--
-- Limbs are whole numbers below LIMB, the first one excepted. Only sums and differences of two are made, which a Lua
-- number holds. An amount is two limbs (whole, picos), what is spent three. Where a function takes or returns amounts,
-- it takes or returns their limbs.

local key, pack, unpack_ = KEYS[1], struct.pack, struct.unpack

-- An absent field (false) is 0.
local function read_amount(packed)
  if not packed then return 0, 0 end
  local whole, picos = unpack_(AMOUNT, packed)
  return whole, picos
end

local function read_spent(packed)
  if not packed then return 0, 0, 0 end
  local whole, picos, last = unpack_(SPENT, packed)
  return whole, picos, last
end

local function add_amount(whole, picos, more_whole, more_picos)
  whole, picos = whole + more_whole, picos + more_picos
  if picos >= LIMB then whole, picos = whole + 1, picos - LIMB end
  return whole, picos
end

-- 0 where it would be less: `r` was lost.
local function subtract_amount(whole, picos, less_whole, less_picos)
  whole, picos = whole - less_whole, picos - less_picos
  if picos < 0 then whole, picos = whole - 1, picos + LIMB end
  if whole < 0 then return 0, 0 end
  return whole, picos
end

local function add_spent(whole, picos, last, more_whole, more_picos, more_last)
  last = last + more_last
  picos = picos + more_picos
  if last >= LIMB then picos, last = picos + 1, last - LIMB end
  whole = whole + more_whole
  if picos >= LIMB then whole, picos = whole + 1, picos - LIMB end
  return whole, picos, last
end

-- Whether an amount is at least another one. What is spent has come to an amount if its first two limbs have.
local function is_at_least(whole, picos, other_whole, other_picos)
  return whole > other_whole or whole == other_whole and picos >= other_picos
end

-- Whether what is drawn from balances counts in a hash with this `e`: a control of before balances writes another end.
local function counts_draws(e)
  return e:sub(-#DRAWS_COUNTED) == DRAWS_COUNTED
end

-- Whether what keys spend counts in a hash with this `e`, as limits of their own need it.
local function counts_keys(e)
  return e:find(KEYS_COUNTED, 1, true) ~= nil
end

-- The names of the DAY and of the MONTH that have this time (ms): spent_field() is 's' .. group .. ':' .. name.
local function window_names(at_ms)
  local utc_day = floor(at_ms / DAY_MS)
  return 'D' .. utc_day, 'M' .. month_of(utc_day)
end

-- The reservations of groups that this call has read or changed, by group: whole, picos. fields: what save() writes,
-- name and value in turn. deleted: the names of fields that it deletes.
local reserved, fields, deleted = {}, {}, {}

local function reserved_of(group)
  local own = reserved[group]
  if not own then
    local whole, picos = read_amount(redis.call('HGET', key, 'r' .. group))
    own = {whole, picos}
    reserved[group] = own
  end
  return own
end

local function raise(group, whole, picos)
  local own = reserved_of(group)
  own[1], own[2] = add_amount(own[1], own[2], whole, picos)
end

local function lower(group, whole, picos)
  local own = reserved_of(group)
  own[1], own[2] = subtract_amount(own[1], own[2], whole, picos)
end

-- Calls `change` (raise or lower) for each group of a packed reservation that is no marker.
local function each_group(reservation, change, whole, picos)
  for group in reservation:sub(GROUPS_AT):gmatch('([^/]+)/') do change(group, whole, picos) end
end

-- Ends a reservation: its groups have so much less reserved, and its field goes. Of a marker ('') only the field goes.
-- field: its name, p<event key>. reservation: what it holds. Call it once per field.
local function release(field, reservation)
  if reservation ~= '' then
    local whole, picos = read_amount(reservation)
    each_group(reservation, lower, whole, picos)
  end
  deleted[#deleted + 1] = field
end

-- Writes everything. unpack() puts at most 8000 values on Lua's stack.
local function save()
  for group, own in pairs(reserved) do
    fields[#fields + 1] = 'r' .. group
    fields[#fields + 1] = pack(AMOUNT, own[1], own[2])
  end
  for at = 1, #fields, 4000 do redis.call('HSET', key, unpack(fields, at, math.min(at + 3999, #fields))) end
  for at = 1, #deleted, 4000 do redis.call('HDEL', key, unpack(deleted, at, math.min(at + 3999, #deleted))) end
end
