"""The Redis hash that counts what a tree spends: its key, the names of its fields, and how they are packed.

`policy/spend/money.lua` reads and writes the same layout.

See docs/reference/money.md#how-spend-is-counted.
"""

# Amounts are whole numbers of limbs, exact in Lua, whose numbers hold 53 bits: units of the currency, then 10^-12, then
# 10^-24 of one. Reservations have the first two. Fields:
# - `e`: the epoch of the server under which control has counted what is here, the currency, and a name for the prices
#   of then, with blanks between them. Without it, nothing counts. The epoch is `master_replid` of `INFO replication`,
#   which is another one after each start and each promotion of a server: what is here may be older then. At its end is
#   DRAWS_COUNTED where what is drawn from balances is here, too: without it, no balance admits. KEYS_COUNTED before
#   that: what each key spends is here, too; without it, no key with limits of its own passes a HARD limit or a balance.
# - `h`: the epoch under which all reservations of calls in flight are here. HARD limits and balances admit only under
#   this one.
# - `c`: the time (ms, decimal digits) through which control has counted events.
# - `s<group>:<window>`: what the group has spent in a window, from the events that are counted.
# - `r<group>`: the sum of the reservations in the group.
# - The same by the name of a key (`policy.spend.key_names.key_name`): what it spends, over all its slugs, where one of
#   the tree has spend limits of its own; what calls reserve of those limits. The counters of its rate limits are here,
#   too.
# - `s<group>*:B`, `r<group>*`: the same of the group's prepaid balance: what is drawn, withdrawals included.
# - `p<event key>`: a reservation: its amount, the worker incarnation that made it, its groups, each followed by `/`. An
#   empty one was given back before it was made: it keeps a late take from running.
# - `w`: names control's last repair of the sums of reservations, so that no two processes make the same one.

import struct
from decimal import Decimal
from typing import NamedTuple

from policy.limits.kinds import Calendar, Rolling, Unit, window_number
from policy.limits.windows import day_of
from policy.prices import amount_of

EPOCH_FIELD = "e"
COUNTED_FIELD = "c"
COMPLETE_FIELD = "h"
REPAIR_FIELD = "w"
SPENT_PREFIX = "s"
RESERVED_PREFIX = "r"
RESERVATION_PREFIX = "p"
DRAWS_COUNTED = "+"
"""The end of `e` in trees with a HARD limit or a balance. A control of before balances, which knows no draws, builds a
hash without it, and this one builds it again."""
KEYS_COUNTED = "#"
"""A sign in `e` of trees in which a key has spend limits of its own. Nothing else in `e` has it."""
BALANCE_WINDOW = "B"
"""The name of the only window of a balance."""
INCARNATION_CHARS = 16
COMMITTED = "-" * INCARNATION_CHARS
"""The incarnation in reservations that control makes for committed events and withdrawals. No worker has it."""
LIMB = 10**12
"""The number of each limb's units that make one of the limb before it."""
UNITS_PER_PICO = 10**10
"""Units of `policy.prices.Rates` (10^-22) in the second limb's unit."""
MAX_PICOS = LIMB * LIMB
"""The largest reservation. It is above every limit's amount, and thousands of them add up to a number that is exact."""
_SPENT = struct.Struct("<QQQ")
_AMOUNT = struct.Struct("<QQ")
AMOUNT_BYTES = _AMOUNT.size


def spend_key(root_group: str) -> str:
    """The key of a tree's hash, in both modes of enforcement. No slug is named `group`: slugs have a prefix."""
    return f"tg:{{{root_group}|group}}"


def spent_field(name: str, unit: Unit | None, at_ms: int) -> str:
    """The field of what a group has spent in the window of `unit` that has this time.

    None: the field of what is drawn from a balance, by its name (`policy.spend.balances.balance_name`).
    """
    return f"{SPENT_PREFIX}{name}:{window_name(unit, at_ms)}"


def window_name(unit: Unit | None, at_ms: int) -> str:
    """The name of a window: `D` or `M`, and its number (`policy.limits.kinds.window_number`). None: a balance's."""
    if unit is None:
        return BALANCE_WINDOW
    assert not isinstance(unit.window, Rolling)
    letter = "M" if unit.window is Calendar.MONTH else "D"
    return f"{letter}{window_number(unit.window, day_of(at_ms))}"


def epoch_text(
    epoch: str, currency: str, prices: str = "", *, with_draws: bool = False, with_keys: bool = False
) -> str:
    """The text of `e` while what the hash has counts: in that epoch, for limits in that currency, by these prices.

    `with_draws`: what is drawn from balances counts, too. `with_keys`: what keys spend does.
    """
    signs = (KEYS_COUNTED if with_keys else "") + (DRAWS_COUNTED if with_draws else "")
    return f"{epoch} {currency} {prices}{signs}"


def picos_of(amount: int, parts_per_pico: int = UNITS_PER_PICO) -> int:
    """The amount of a reservation that covers `amount`: in 10^-12, rounded up, at most `MAX_PICOS`.

    `parts_per_pico`: in such parts of 10^-12 is `amount`, by default in units (10^-22).
    """
    if parts_per_pico == 1 and amount < MAX_PICOS:  # nearly always
        return amount
    return min(-(-amount // parts_per_pico), MAX_PICOS)


def units_of_picos(picos: int) -> int:
    """The units (10^-22) in a reservation."""
    return picos * UNITS_PER_PICO


def picos_of_amount(amount: Decimal) -> int:
    """A limit's amount, which has at most 12 digits after the point, in 10^-12."""
    return int(amount.scaleb(12))


def pack_amount(picos: int) -> bytes:
    """A reservation's amount, or a limit's."""
    return _AMOUNT.pack(*divmod(picos, LIMB))


def unpack_amount(packed: bytes) -> int:
    """The picos of a packed amount."""
    whole, picos = _AMOUNT.unpack(packed[:AMOUNT_BYTES])
    return int(whole * LIMB + picos)


def amount_of_picos(picos: int) -> Decimal:
    """The amount of money of a reservation, exactly."""
    return amount_of(units_of_picos(picos))


def limbs_of(units: int) -> tuple[int, int, int]:
    """An exact amount in three limbs. `units`: 10^-22 of the currency."""
    whole, rest = divmod(units * 100, LIMB * LIMB)
    return (whole, *divmod(rest, LIMB))


def units_of_limbs(whole: int, picos: int, last: int) -> int:
    """The units (10^-22) of three limbs, or of the sums of many."""
    return ((whole * LIMB + picos) * LIMB + last) // 100


def pack_spent(units: int) -> bytes:
    """An exact amount: `units` are 10^-22 of the currency."""
    return _SPENT.pack(*limbs_of(units))


def unpack_spent(packed: bytes) -> int:
    """The units (10^-22) of an exact amount."""
    return units_of_limbs(*_SPENT.unpack(packed))


def spent_amount(packed: bytes) -> Decimal:
    return amount_of(unpack_spent(packed))


class Reserved(NamedTuple):
    """A reservation as the hash holds it."""

    picos: int
    incarnation: str
    groups: tuple[str, ...]


def pack_reservation(reserved: Reserved) -> bytes:
    groups = "".join(f"{group}/" for group in reserved.groups)
    return pack_amount(reserved.picos) + (reserved.incarnation + groups).encode()


def unpack_reservation(packed: bytes) -> Reserved | None:
    """The reservation; None for one that was given back before it was made."""
    if not packed:
        return None
    text = packed[AMOUNT_BYTES:].decode()
    incarnation, groups = text[:INCARNATION_CHARS], text[INCARNATION_CHARS:]
    return Reserved(unpack_amount(packed), incarnation, tuple(groups.split("/")[:-1]))
