"""The Lua scripts `take.lua` and `end.lua` of spend limits and balances, and the packing of their arguments.

The only Python module that knows the order and the widths of the arguments. Reads the scripts; otherwise no I/O.

See docs/reference/money.md#how-spend-is-counted.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat, starmap
from operator import add

from policy.limits.kinds import Calendar
from policy.spend.effective import SpendPlan
from policy.spend.script_constants import spend_constants
from policy.spend.spend_hash import (
    INCARNATION_CHARS,
    LIMB,
    RESERVATION_PREFIX,
    SPENT_PREFIX,
    Reserved,
    pack_amount,
    pack_limbs,
    pack_reservation,
    picos_of_amount,
)
from proxy.edges.redis.nodes.connection import encode
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


Arguments = tuple[str, bytes]
"""Two arguments of either script: the field of a call's reservation, and what becomes of it."""
_field_of = RESERVATION_PREFIX.__add__


def call_arguments(event_key: str, picos: int) -> Arguments:
    """The arguments of either script for a call's reservation: its amount."""
    return RESERVATION_PREFIX + event_key, pack_limbs(picos // LIMB, picos % LIMB)


def calls_arguments(event_keys: Iterable[str], picos: Iterable[int]) -> Iterator[Arguments]:
    """The same of many calls. No Python runs per call."""
    return zip(map(_field_of, event_keys), _packed(picos), strict=True)


def hard_calls_arguments(
    event_keys: Iterable[str], wholes: Iterable[int], leasts: Iterable[int]
) -> Iterator[Arguments]:
    """The arguments of take.lua for many calls of a plan that is hard: the least and the whole amount of each."""
    return zip(map(_field_of, event_keys), map(add, _packed(leasts), _packed(wholes)), strict=True)


def hard_call_arguments(event_key: str, whole: int, least: int) -> Arguments:
    """The same of one call."""
    return next(hard_calls_arguments([event_key], [whole], [least]))


def _packed(picos: Iterable[int]) -> Iterator[bytes]:
    return starmap(pack_limbs, map(divmod, picos, repeat(LIMB)))


def reservation_arguments(event_key: str, reserved: Reserved) -> Arguments:
    """The arguments of end.lua that put a reservation where there is none."""
    return RESERVATION_PREFIX + event_key, pack_reservation(reserved)


def given_back_arguments(event_key: str) -> Arguments:
    """The arguments of end.lua for a call that was never dispatched."""
    return RESERVATION_PREFIX + event_key, b""


def given_up_arguments(event_key: str) -> Arguments:
    """The same, for a call whose take may still run: it will reserve nothing."""
    return RESERVATION_PREFIX + event_key, _GIVEN_UP


def encoded(calls: Iterable[Arguments]) -> bytes:
    """The arguments of calls, of which there is one at least, encoded for Redis."""
    arguments: Iterable[str | bytes] = chain.from_iterable(calls)
    command = encode(*arguments)
    return command[command.index(b"$") :]
