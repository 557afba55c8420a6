"""The Lua scripts `take.lua` and `end.lua` of spend limits and balances, and the packing of their arguments.

The only Python module that knows the order and the widths of the arguments. Reads the scripts; otherwise no I/O.

See docs/reference/money.md#how-spend-is-counted.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

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

_GIVEN_UP = "!"
_BEFORE_AMOUNT = b"\r\n$%d\r\n" % AMOUNT_BYTES


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
            Script.load("spend/end.lua", f"{money}local GIVEN_UP = '{_GIVEN_UP}'\n", clock),
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


def call_arguments(event_key: str, picos: int) -> bytes:
    """Two arguments of either script, encoded for Redis: a call's reservation, and its amount."""
    key = event_key.encode()
    head, pack = _packing(len(key))
    return pack(head, key, _BEFORE_AMOUNT, picos // LIMB, picos % LIMB, b"\r\n")


@lru_cache(64)
def _packing(key_bytes: int) -> tuple[bytes, Callable[..., bytes]]:
    """The text before an event's key of this length, and the function that packs all of a call."""
    head = f"${key_bytes + 1}\r\n{RESERVATION_PREFIX}".encode()
    return head, struct.Struct(f"<{len(head)}s{key_bytes}s{len(_BEFORE_AMOUNT)}sQQ2s").pack


def hard_call_arguments(event_key: str, whole: int, least: int) -> bytes:
    """Two arguments of take.lua for a plan that is hard: a call's reservation; the least and the whole amount."""
    field = f"{RESERVATION_PREFIX}{event_key}".encode()
    return encode_argument(field) + encode_argument(pack_amount(least) + pack_amount(whole))


def reservation_arguments(event_key: str, reserved: Reserved) -> bytes:
    """Two arguments of end.lua that put a reservation where there is none."""
    field = f"{RESERVATION_PREFIX}{event_key}".encode()
    return encode_argument(field) + encode_argument(pack_reservation(reserved))


def given_back_arguments(event_key: str) -> bytes:
    """Two arguments of end.lua for a call that was never dispatched."""
    return f"${len(event_key) + 1}\r\n{RESERVATION_PREFIX}{event_key}\r\n$0\r\n\r\n".encode()


def given_up_arguments(event_key: str) -> bytes:
    """The same, for a call whose take may still run: it will reserve nothing."""
    return f"${len(event_key) + 1}\r\n{RESERVATION_PREFIX}{event_key}\r\n${len(_GIVEN_UP)}\r\n{_GIVEN_UP}\r\n".encode()
