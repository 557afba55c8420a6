-- Withdraw: an amount of a balance is reserved until the withdrawal is counted. Repeating it changes nothing.
-- ARGV: what `e` begins with: the epoch and the currency | the name of the balance | what was paid in, the amount (two
-- limbs each) | p<key of the withdrawal> | what follows the amount in its reservation: an incarnation and the name.
-- Reply: 1; 0 if there is no room for it; -1 if what is drawn is not counted here, or reservations may be missing.

local epoch, name, field = ARGV[1], ARGV[2], ARGV[5]
local state = redis.call('HMGET', key, 'e', 'h', field, 's' .. name .. ':B')
local is_counted = state[1] and state[1]:sub(1, #epoch) == epoch and counts_draws(state[1])
if not is_counted or state[2] ~= epoch:match('^%S+') then return -1 end
if state[3] then return 1 end
local deposited, deposited_picos = read_amount(ARGV[3])
local whole, picos = read_amount(ARGV[4])
local drawn, drawn_picos, last = read_spent(state[4])
if last > 0 then drawn, drawn_picos = add_amount(drawn, drawn_picos, 0, 1) end  -- a pico is drawn as soon as it is begun
local own = reserved_of(name)
local used, used_picos = add_amount(drawn, drawn_picos, own[1], own[2])
used, used_picos = add_amount(used, used_picos, whole, picos)
if not is_at_least(deposited, deposited_picos, used, used_picos) then return 0 end
raise(name, whole, picos)
fields[#fields + 1] = field
fields[#fields + 1] = ARGV[4] .. ARGV[6]
save()
return 1
