"""The Lua scripts `take.lua`, `settle.lua` and `revoke.lua`, and the packing of their arguments.

The only Python module that knows the order and the widths of the arguments. Reads the scripts; otherwise no I/O.

See docs/reference/limits.md#counter-layout.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

from policy.limits.counter_layout import KIND_NUMBER, MARKER_PREFIX, TAKES_SUFFIX
from policy.limits.effective import Bound
from policy.limits.settlement import Settlement
from policy.limits.take_numbers import TakeStamp
from proxy.edges.redis.nodes.connection import encode_argument

Buckets = tuple[tuple[str, int], ...]
"""See `policy.limits.settlement.Reservation`."""

_CLOCK = "redis.call('TIME')"


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, and the SHA-1 digest by which EVALSHA names it."""

    text: bytes
    sha: bytes

    @classmethod
    def load(cls, *names: str, clock: str = _CLOCK) -> "Script":
        """Concatenates files. `clock`: the Lua expression that reads the time; tests replace it."""
        folder = resources.files("proxy.edges.redis")
        texts = (folder.joinpath(name).read_text("utf-8") for name in names)
        text = "".join(texts).replace(_CLOCK, clock).encode()
        return cls(text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


@dataclass(frozen=True, slots=True)
class Scripts:
    """The three scripts of the counters."""

    take: Script
    settle: Script
    revoke: Script

    @classmethod
    def load(cls, clock: str = _CLOCK) -> "Scripts":
        return cls(
            Script.load("log.lua", "take.lua", clock=clock),
            Script.load("log.lua", "settle.lua", clock=clock),
            Script.load("revoke.lua", clock=clock),
        )


_STAMP = struct.Struct("<QQQ")
STAMP_BYTES = _STAMP.size
pack_stamp = _STAMP.pack
"""The part that differs in each take (`policy.limits.take_numbers.TakeStamp`), the end of its packed values: deadline
(ms), number, answered through."""


def take_arguments(bounds: Sequence[Bound], lease_ms: int, stamp: TakeStamp) -> list[bytes]:
    """The arguments of take.lua up to the estimates."""
    packed = pack_stamp(stamp.deadline_ms, stamp.number, stamp.answered_through)
    return take_template(bounds, lease_ms, stamp.incarnation, packed)


def take_template(bounds: Sequence[Bound], lease_ms: int, incarnation: str, stamp: bytes) -> list[bytes]:
    """The same arguments for every take under these bounds, except the stamp at the end of the second one."""
    places = _places(bound.counting_group for bound in bounds)
    values = _six_bytes(lease_ms) + bytes([len(places)])
    for bound in bounds:
        number = KIND_NUMBER[bound.limit.type, bound.limit.unit]
        values += bytes([places[bound.counting_group], number]) + _seven_bytes(bound.limit.threshold)
    groups = (group.encode() for group in places)
    return [b"<I6B" + b"BBI7" * len(bounds) + b"I8I8I8", values + stamp, *groups, takes_field(incarnation)]


_SETTLEMENT = struct.Struct("<QQQQQBB")
_SETTLEMENT_FORMAT = b"I8I8I8I8I8BB"
_SETTLEMENT_VALUES = 7
WITHOUT_REDIS, GIVEN_BACK = 1, 2
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
    return batch_arguments(list(map(packed, settlements)), buckets, incarnation, lease_ms)


def batch_arguments(
    settlements: Sequence[bytes], buckets: Sequence[Buckets], incarnation: str, lease_ms: int
) -> list[bytes]:
    """The same for packed settlements and their buckets."""
    places = _places(group for own in buckets for group, _ in own)
    layout, values = [b"<I6"], [_six_bytes(lease_ms)]
    for settlement, own in zip(settlements, buckets, strict=True):
        layout.append(_SETTLEMENT_FORMAT + b"HH" * len(own))
        values += [settlement, *(struct.pack("<HH", places[group], mask) for group, mask in own)]
    return [b"".join(layout), b"".join(values), *(group.encode() for group in places), _marker(incarnation)]


class SettleTemplate:
    """What all batches of one key and incarnation have in common if their settlements have the same buckets. Such a
    batch is joined from prepared pieces."""

    def __init__(self, script: Script, key: str, incarnation: str, buckets: Buckets, lease_ms: int) -> None:
        places = _places(group for group, _ in buckets)
        command = (b"EVALSHA", script.sha, b"1", key.encode())
        self.buckets = buckets
        self._command = b"*%d\r\n%b" % (len(command) + 3 + len(places), b"".join(map(encode_argument, command)))
        self._format = _SETTLEMENT_FORMAT + b"HH" * len(buckets)
        self._lease = _six_bytes(lease_ms)
        self._packed_buckets = b"".join([struct.pack("<HH", places[group], mask) for group, mask in buckets])
        self._end = b"\r\n" + b"".join(map(encode_argument, [*map(str.encode, places), _marker(incarnation)]))

    def encode_batch(self, settlements: Sequence[bytes]) -> bytes:
        """The command for packed settlements."""
        layout, own = b"<I6" + self._format * len(settlements), self._packed_buckets
        values = b"%b%b%b" % (self._lease, own.join(settlements), own)
        return b"%b$%d\r\n%b\r\n$%d\r\n%b%b" % (self._command, len(layout), layout, len(values), values, self._end)


def _marker(incarnation: str) -> bytes:
    return (MARKER_PREFIX + incarnation).encode()


def takes_field(incarnation: str) -> bytes:
    """The field of a hash that holds an incarnation's takes."""
    return _marker(incarnation + TAKES_SUFFIX)


_VALUES_MAX = 4000
"""In Lua a C function, here `struct.unpack`, can return at most 8000 values."""
BATCH_MAX = _VALUES_MAX // (_SETTLEMENT_VALUES + 2)
"""Most settlements of a batch: each has one bucket at least."""


def batch_size(buckets: Sequence[Buckets]) -> tuple[int, bool]:
    """How many of the oldest settlements one call of the script can take; whether they all have the same buckets.

    `buckets`: those of all settlements that wait, oldest first.
    """
    first, oldest = buckets[0], buckets[:BATCH_MAX]
    if oldest.count(first) == len(oldest):
        return min(len(oldest), max(1, _VALUES_MAX // (_SETTLEMENT_VALUES + 2 * len(first)))), True
    values = 0
    for count, own in enumerate(oldest):
        values += _SETTLEMENT_VALUES + 2 * len(own)
        if values > _VALUES_MAX and count:
            return count, oldest[:count].count(first) == count
    return len(oldest), False


def _places(groups: Iterable[str]) -> dict[str, int]:
    return {group: place for place, group in enumerate(dict.fromkeys(groups), 1)}


def _six_bytes(number: int) -> bytes:
    return number.to_bytes(6, "little")


def _seven_bytes(number: int) -> bytes:
    return number.to_bytes(7, "little")
