"""The Lua scripts `take.lua`, `settle.lua`, `revoke.lua` and `places.lua`, and the packing of their arguments.

The only Python module that knows the order and the widths of the arguments. Reads the scripts; otherwise no I/O.

See docs/reference/limits.md#counter-layout.
"""

import hashlib
import struct
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from itertools import chain, count
from typing import NamedTuple

from policy.limits.counter_layout import HASH_EXPIRY_S, MARKER_PREFIX, TAKES_SUFFIX, masks_by_type
from policy.limits.effective import LimitSet, Plan
from policy.limits.in_flight.places import Word
from policy.limits.kinds import KIND_NUMBER, TOKEN_TYPES, LimitType
from policy.limits.script_constants import kind_constants
from policy.limits.settlement import Buckets, Settlement

CLOCK = "redis.call('TIME')"
"""The call that reads the time in a script."""


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, and the SHA-1 digest by which EVALSHA names it."""

    text: bytes
    sha: bytes

    @classmethod
    def load(cls, name: str, before: str, clock: str = CLOCK) -> "Script":
        """Read a file. `before`: Lua in front of it. `clock`: what reads the time; tests replace it."""
        text = (before + lua_text("proxy.edges.redis", name)).replace(CLOCK, clock).encode()
        return cls(text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


@dataclass(frozen=True, slots=True)
class Scripts:
    """The scripts of the counters."""

    take: Script
    settle: Script
    revoke: Script
    places: Script

    @classmethod
    def load(cls, clock: str = CLOCK) -> "Scripts":
        constants = kind_constants()
        counters = constants + lua_text("policy.limits", "month.lua") + lua_text("policy.limits", "log.lua")
        places = lua_text("policy.limits.in_flight", "places.lua")
        return cls(
            Script.load("take.lua", counters + places, clock),
            Script.load("settle.lua", counters, clock),
            Script.load("revoke.lua", f"local EXPIRY_S = {HASH_EXPIRY_S}\n", clock),
            Script.load("places.lua", constants + places, clock),
        )


def lua_text(package: str, name: str) -> str:
    """A Lua file of the product."""
    return resources.files(package).joinpath(name).read_text("utf-8")


_STAMP = struct.Struct("<QQQ")
STAMP_BYTES = _STAMP.size
pack_stamp = _STAMP.pack
"""The part that differs in each take (`policy.limits.take_numbers.TakeStamp`), the end of its packed values: deadline
(ms), number, answered through."""


def take_template(plan: Plan, lease_ms: int, incarnation: str, stamp: bytes) -> list[bytes]:
    """The arguments of take.lua up to the estimates: the same for every take of this plan, except the stamp."""
    limits = take_limits(plan.limits)
    values = lease_ms.to_bytes(6, "little") + limits.packed + stamp
    return [limits.layout, values, *map(str.encode, plan.groups), takes_field(incarnation)]


class TakeLimits(NamedTuple):
    """The limits of a take. `layout`: how its values are packed, for Lua."""

    layout: bytes
    packed: bytes
    columns: tuple[LimitType, ...]
    """The types of tokens that a request brings figures of: TOKEN, and the others that a limit counts."""
    masks: tuple[tuple[int, ...], ...]
    """The mask of each group for each column: the limits that count its tokens. TOKEN's also has REQUEST limits."""
    is_closed: bool
    """True if a threshold of 0 refuses every call."""
    in_flight: tuple[bool, ...]
    """True for each group that limits its calls in flight."""
    settled: tuple[bool, ...]
    """True for each group with TOKEN limits, which a dispatched call settles. Its request stays counted."""
    is_usual: bool
    """True if each group has TOKEN limits, and no others but those of requests, and no threshold is 0."""
    names: dict[int, tuple[str, str]]
    """The names of the fields that tell callers of a limit, by its place from 1, as far as they were needed."""


@lru_cache(4096)
def take_limits(sets: tuple[LimitSet, ...]) -> TakeLimits:
    """Encode the limits of each group. Trees of one contract have the same."""
    types = {limit.type for own in sets for limit in own.limits}
    columns = tuple(type for type in TOKEN_TYPES if type is LimitType.TOKEN or type in types)
    column = {type: place for place, type in enumerate(columns, 1)}
    packed = [bytes([len(sets), len(columns)])]
    for place, own in enumerate(sets, 1):
        for limit in own.limits:
            numbers = place, column.get(limit.type, 0), KIND_NUMBER[limit.type, limit.unit]
            packed.append(bytes(numbers) + limit.threshold.to_bytes(7, "little"))
    layout = b"<I6BB" + b"BBBI7" * (len(packed) - 1) + b"I8I8I8"
    parts = [masks_by_type(own.mask) for own in sets]
    masks = tuple(tuple(part.get(type, 0) for part in parts) for type in columns)
    settled = tuple(any(limit.type is LimitType.TOKEN for limit in own.limits) for own in sets)
    in_flight = tuple(any(limit.type.is_concurrent for limit in own.limits) for own in sets)
    is_closed = any(0 in own.thresholds for own in sets)
    return TakeLimits(
        layout=layout,
        packed=b"".join(packed),
        columns=columns,
        masks=masks,
        is_closed=is_closed,
        in_flight=in_flight,
        settled=settled,
        is_usual=all(settled) and len(columns) == 1 and not is_closed and not any(in_flight),
        names={},
    )


_SETTLEMENT = struct.Struct("<QQQQQBB")
_SETTLEMENT_FORMAT = b"I8I8I8I8I8BB"
_SETTLEMENT_VALUES = 7
WITHOUT_REDIS = 1
GIVEN_BACK = 2
pack_settlement = _SETTLEMENT.pack
"""A settlement without its buckets: number, admission time (ms), reserved tokens, margin, actual tokens, flags (the sum
of the two above that apply), number of its buckets."""


def number_of(packed: bytes) -> int:
    """The number of a packed settlement."""
    return int.from_bytes(packed[:8], "little")


def packed(settlement: Settlement) -> bytes:
    reservation = settlement.reservation
    flags = WITHOUT_REDIS * reservation.local + GIVEN_BACK * settlement.given_back
    return pack_settlement(
        settlement.number,
        reservation.admitted_at_ms,
        reservation.reserved_tokens,
        reservation.margin_tokens,
        settlement.actual_tokens,
        flags,
        len(reservation.buckets),
    )


def settle_arguments(settlements: Sequence[Settlement], incarnation: str, lease_ms: int) -> list[bytes]:
    """The arguments of settle.lua for a batch of one key, as many as `batch_size` allows."""
    buckets = [settlement.reservation.buckets for settlement in settlements]
    return batch_arguments(list(map(packed, settlements)), buckets, marker_field(incarnation), lease_ms)


def batch_arguments(
    settlements: Sequence[bytes], buckets: Sequence[Buckets], marker: bytes, lease_ms: int
) -> list[bytes]:
    """The same for packed settlements and their buckets. `marker`: the incarnation's `marker_field`."""
    lease = lease_ms.to_bytes(6, "little")
    shared = buckets[0]
    if buckets.count(shared) == len(buckets):  # calls of one plan share theirs, so they are packed once
        groups, masks = zip(*shared, strict=True) if shared else ((), ())
        layout, pack = _buckets_form(len(shared))
        numbers = pack(*chain.from_iterable(enumerate(masks, 1)))
        values = lease + numbers.join(settlements) + numbers
        return [b"<I6" + layout * len(buckets), values, *map(str.encode, groups), marker]
    return _mixed_arguments(settlements, buckets, marker, lease)


def _mixed_arguments(
    settlements: Sequence[bytes], buckets: Sequence[Buckets], marker: bytes, lease: bytes
) -> list[bytes]:
    """The same for calls of several plans, in one pass."""
    layout, pack = _settle_layout(tuple(map(len, buckets)))
    places: dict[str, int] = defaultdict(count(1).__next__)
    values: list[bytes | int] = [lease]
    latest: Buckets = ()
    numbers: list[int] = []
    for settlement, own in zip(settlements, buckets, strict=True):
        if own is not latest:
            latest = own
            numbers = [number for group, mask in own for number in (places[group], mask)]
        values += (settlement, *numbers)
    return [layout, pack(*values), *map(str.encode, places), marker]


@lru_cache(64)
def _buckets_form(number: int) -> tuple[bytes, Callable[..., bytes]]:
    """The layout of a settlement with so many buckets, for Lua, and the function that packs these."""
    return _SETTLEMENT_FORMAT + b"HI8" * number, struct.Struct("<" + "HQ" * number).pack


@lru_cache(256)
def _settle_layout(buckets: tuple[int, ...]) -> tuple[bytes, Callable[..., bytes]]:
    """The layout of a batch, for Lua, and the function that packs it. `buckets`: their number in each settlement."""
    layout = [_SETTLEMENT_FORMAT + b"HI8" * own for own in buckets]
    packing = [b"%ds" % _SETTLEMENT.size + b"HQ" * own for own in buckets]
    return b"<I6" + b"".join(layout), struct.Struct(b"<6s" + b"".join(packing)).pack


def marker_field(incarnation: str) -> bytes:
    """The field of a hash that holds the last number that was settled of an incarnation."""
    return (MARKER_PREFIX + incarnation).encode()


@lru_cache(16)
def takes_field(incarnation: str) -> bytes:
    """The field of a hash that holds an incarnation's takes."""
    return marker_field(incarnation + TAKES_SUFFIX)


def places_arguments(incarnation: str, word: Word, calls: Mapping[str, int]) -> list[bytes]:
    """The arguments of places.lua. `calls`: the calls in flight by group; of most words only the groups count."""
    layout = b"<BI6I6" + b"I4" * len(calls)
    numbers = [number.to_bytes(4, "little") for number in calls.values()]
    values = bytes([word.says.value]) + word.version.to_bytes(6, "little") + word.answered.to_bytes(6, "little")
    return [layout, values + b"".join(numbers), *map(str.encode, calls), incarnation.encode()]


_VALUES_MAX = 4000
"""The most values of a batch. In Lua a C function, here `struct.unpack`, can return at most 8000 values."""
BATCH_MAX = _VALUES_MAX // (_SETTLEMENT_VALUES + 2)
"""Most settlements of a batch: each has one bucket at least."""


def batch_size(buckets: Sequence[Buckets]) -> int:
    """The number of the oldest settlements that one call of the script can take. `buckets`: of all, oldest first."""
    if _SETTLEMENT_VALUES * len(buckets) + 2 * sum(map(len, buckets)) <= _VALUES_MAX:  # nearly always
        return len(buckets)
    values = 0
    for number, own in enumerate(buckets[:BATCH_MAX]):
        values += _SETTLEMENT_VALUES + 2 * len(own)
        if values > _VALUES_MAX and number:
            return number
    return min(len(buckets), BATCH_MAX)
