"""The Lua scripts `take.lua` and `end.lua` of spend limits and balances, and the packing of their arguments.

The only Python module that knows the order and the widths of the arguments. Reads the scripts; otherwise no I/O.

See docs/reference/money.md#how-spend-is-counted.
"""

from dataclasses import dataclass
from struct import Struct

from policy.limits.kinds import Calendar
from policy.spend.effective import SpendPlan
from policy.spend.script_constants import spend_constants
from policy.spend.spend_hash import (
    AMOUNT_BYTES,
    INCARNATION_CHARS,
    LIMB,
    RESERVATION_PREFIX,
    SPENT_PREFIX,
    Reserved,
    pack_amount,
    pack_reservation,
    picos_of_amount,
)
from proxy.edges.redis.nodes.connection import encode_argument
from proxy.edges.redis.scripts import CLOCK, Script, lua_text

_GIVEN_UP = b"!"


@dataclass(frozen=True, slots=True)
class SpendScripts:
    """The two scripts."""

    take: Script
    end: Script

    @classmethod
    def load(cls, clock: str = CLOCK) -> "SpendScripts":
        """Read them. `clock`: what reads the time; tests replace it."""
        money = spend_constants() + lua_text("policy.limits", "month.lua") + lua_text("policy.spend", "money.lua")
        return cls(
            Script.load("spend/take.lua", money, clock),
            Script.load("spend/end.lua", f"{money}local GIVEN_UP = '{_GIVEN_UP.decode()}'\n", clock),
        )


def take_template(plan: SpendPlan, incarnation: str) -> list[bytes]:
    """The arguments of take.lua up to the calls. `incarnation`: of 16 characters."""
    if len(incarnation) != INCARNATION_CHARS:
        raise ValueError(f"the name of an incarnation has {INCARNATION_CHARS} characters, not {incarnation!r}")
    values = [bytes([len(plan.groups)])]
    prefixes = []
    for amount, name, unit, is_hard in plan.ceilings:
        is_month = unit is not None and unit.window is Calendar.MONTH
        place = plan.groups.index(name) + 1
        flags = is_month + 2 * is_hard + 4 * (unit is None)
        values.append(bytes([place, flags]) + pack_amount(picos_of_amount(amount)))
        prefixes.append(f"{SPENT_PREFIX}{name}:")
    layout = "<B" + "BBI8I8" * len(plan.ceilings)
    suffix = incarnation + "".join(f"{group}/" for group in plan.groups)
    return [layout.encode(), b"".join(values), *map(str.encode, (*plan.groups, *prefixes, suffix))]


Arguments = bytes
"""Two arguments of either script, encoded: the field of a call's reservation, and what becomes of it."""
_KEY_CHARS = 26
"""The size of an event key."""
_KEY_BEGINS = b"$%d\r\n%b" % (1 + _KEY_CHARS, RESERVATION_PREFIX.encode())
_AMOUNT_BEGINS = b"\r\n$%d\r\n" % AMOUNT_BYTES
_AMOUNTS_BEGIN = b"\r\n$%d\r\n" % (2 * AMOUNT_BYTES)
_END = b"\r\n"
_pack_call = Struct(f"<{len(_KEY_BEGINS)}s{_KEY_CHARS}s{len(_AMOUNT_BEGINS)}sQQ2s").pack
_pack_hard_call = Struct(f"<{len(_KEY_BEGINS)}s{_KEY_CHARS}s{len(_AMOUNTS_BEGIN)}sQQQQ2s").pack
"""Both write all that is sent of a call at once: a third of the time of encoding its arguments one by one."""


def call_arguments(event_key: str, picos: int) -> Arguments:
    """The arguments of either script for a call's reservation: its amount."""
    key = event_key.encode()
    if len(key) != _KEY_CHARS:
        return _arguments(key, pack_amount(picos))
    return _pack_call(_KEY_BEGINS, key, _AMOUNT_BEGINS, picos // LIMB, picos % LIMB, _END)


def hard_call_arguments(event_key: str, whole: int, least: int) -> Arguments:
    """The arguments of take.lua for a call of a plan that is hard: the least and the whole amount."""
    key = event_key.encode()
    if len(key) != _KEY_CHARS:
        return _arguments(key, pack_amount(least) + pack_amount(whole))
    return _pack_hard_call(
        _KEY_BEGINS, key, _AMOUNTS_BEGIN, least // LIMB, least % LIMB, whole // LIMB, whole % LIMB, _END
    )


def reservation_arguments(event_key: str, reserved: Reserved) -> Arguments:
    """The arguments of end.lua that put a reservation where there is none."""
    return _arguments(event_key.encode(), pack_reservation(reserved))


def given_back_arguments(event_key: str) -> Arguments:
    """The arguments of end.lua for a call that was never dispatched."""
    return _arguments(event_key.encode(), b"")


def given_up_arguments(event_key: str) -> Arguments:
    """The same, for a call whose take may still run: it will reserve nothing."""
    return _arguments(event_key.encode(), _GIVEN_UP)


def _arguments(event_key: bytes, value: bytes) -> Arguments:
    return encode_argument(RESERVATION_PREFIX.encode() + event_key) + encode_argument(value)


encoded = b"".join
"""The arguments of calls, encoded for Redis."""
