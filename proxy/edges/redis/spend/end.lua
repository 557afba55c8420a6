-- Ends of calls: each reservation gets the call's true cost, or is given back. And reservations that were lost are put
-- again. Repeating it changes nothing.
-- money.lua comes before this text.
-- ARGV, per call: p<event key>, then its cost as a packed amount; or nothing: it was never dispatched, and its reservation
--       is given back; or GIVEN_UP: the same, and where it has no reservation yet, none is made any more; or
--       a whole packed reservation, which is longer than an amount: it is put where there is none.
-- Reply: the number of calls.
-- Where there is no reservation, control has counted the call's event, or it was given back already.
-- The reference in Python: policy/spend/spend_book.py, end(). See docs/reference/money.md#how-spend-is-counted.

local names = {}
for at = 1, #ARGV, 2 do names[#names + 1] = ARGV[at] end
local values = redis.call('HMGET', key, unpack(names))
local held, is_new = {}, false
for call, name in ipairs(names) do held[name] = values[call] end

for call, name in ipairs(names) do
  local reservation, value = held[name], ARGV[2 * call]
  if not reservation then
    if value == GIVEN_UP then
      fields[#fields + 1], fields[#fields + 2] = name, ''
      held[name], is_new = '', true
    elseif #value > AMOUNT_BYTES then
      fields[#fields + 1], fields[#fields + 2] = name, value
      local whole, picos = read_amount(value)
      each_group(value, raise, whole, picos)
      held[name], is_new = value, true
    end
  elseif reservation ~= '' then
    if #value == AMOUNT_BYTES then
      local whole, picos = read_amount(reservation)
      each_group(reservation, lower, whole, picos)
      whole, picos = read_amount(value)
      each_group(reservation, raise, whole, picos)
      held[name] = value .. reservation:sub(AMOUNT_BYTES + 1)
      fields[#fields + 1], fields[#fields + 2] = name, held[name]
    elseif #value < AMOUNT_BYTES then
      release(name, reservation)
      held[name] = ''
    end
  end
end
save()
if is_new then redis.call('EXPIRE', key, EXPIRY_S) end  -- control may not know the tree yet
return #names
