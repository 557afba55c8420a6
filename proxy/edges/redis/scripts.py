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
from policy.limits.settlement import SettlementFigures
from policy.limits.take_numbers import TakeStamp
from proxy.edges.redis.nodes.connection import encode_argument

_WITHOUT_REDIS, _GIVEN_BACK = 1, 2
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


def stamp_bytes(number: int, answered_through: int, deadline_ms: int) -> bytes:
    """The part that differs in each take (`policy.limits.take_numbers.TakeStamp`): the end of its packed values."""
    return _STAMP.pack(deadline_ms, number, answered_through)


def take_arguments(bounds: Sequence[Bound], lease_ms: int, stamp: TakeStamp) -> list[bytes]:
    """The arguments of take.lua up to the estimates."""
    return take_template(bounds, lease_ms, stamp.incarnation, stamp_bytes(*stamp[1:]))


def take_template(bounds: Sequence[Bound], lease_ms: int, incarnation: str, stamp: bytes) -> list[bytes]:
    """The same arguments for every take under these bounds, except the stamp at the end of the second one."""
    places = _places(bound.counting_group for bound in bounds)
    values = _six_bytes(lease_ms) + bytes([len(places)])
    for bound in bounds:
        number = KIND_NUMBER[bound.limit.type, bound.limit.unit]
        values += bytes([places[bound.counting_group], number]) + _seven_bytes(bound.limit.threshold)
    groups = (group.encode() for group in places)
    return [b"<I6B" + b"BBI7" * len(bounds) + b"I8I8I8", values + stamp, *groups, takes_field(incarnation)]


_SETTLEMENT = struct.Struct("<QQQQBB")
_SETTLEMENT_FORMAT = b"I8I8I8I8BB"


def settle_arguments(settlements: Sequence[SettlementFigures], incarnation: str, lease_ms: int) -> list[bytes]:
    """The arguments of settle.lua for a batch of one key, as many as `first_batch` allows."""
    places = _places(group for settlement in settlements for group, _ in settlement[0].buckets)
    formats, values = [b"<I6"], [_six_bytes(lease_ms)]
    for settlement, figures in zip(settlements, _figures(settlements), strict=True):
        buckets = settlement[0].buckets
        formats.append(_SETTLEMENT_FORMAT + b"HH" * len(buckets))
        values.append(figures)
        values += [struct.pack("<HH", places[group], mask) for group, mask in buckets]
    return [b"".join(formats), b"".join(values), *(group.encode() for group in places), _marker(incarnation)]


class SettleTemplate:
    """What all batches of one key and incarnation have in common if their settlements have the same buckets. Such a
    batch is joined from prepared pieces; a batch of one settlement has three."""

    def __init__(
        self, script: Script, key: str, incarnation: str, buckets: Sequence[tuple[str, int]], lease_ms: int
    ) -> None:
        places = _places(group for group, _ in buckets)
        command = (b"EVALSHA", script.sha, b"1", key.encode())
        self._command = b"*%d\r\n%b" % (len(command) + 3 + len(places), b"".join(map(encode_argument, command)))
        self._format = _SETTLEMENT_FORMAT + b"HH" * len(buckets)
        self._lease = _six_bytes(lease_ms)
        self._buckets = b"".join([struct.pack("<HH", places[group], mask) for group, mask in buckets])
        self._end = b"\r\n" + b"".join(map(encode_argument, [*map(str.encode, places), _marker(incarnation)]))
        self._single_head = self._head(1)

    def encode_batch(self, batch: Sequence[SettlementFigures]) -> bytes:
        head = self._single_head if len(batch) == 1 else self._head(len(batch))
        return b"%b%b%b%b" % (head, self._buckets.join(_figures(batch)), self._buckets, self._end)

    def _head(self, count: int) -> bytes:
        """Everything before the figures of `count` settlements."""
        size = len(self._lease) + count * (_SETTLEMENT.size + len(self._buckets))
        return b"%b%b$%d\r\n%b" % (self._command, encode_argument(b"<I6" + self._format * count), size, self._lease)


def _figures(batch: Iterable[SettlementFigures]) -> list[bytes]:
    """Each settlement without its buckets, packed."""
    packed, pack = [], _SETTLEMENT.pack
    for (_, buckets, admitted_at_ms, reserved_tokens, local), number, actual_tokens, given_back in batch:
        flags = (_WITHOUT_REDIS if local else 0) | (_GIVEN_BACK if given_back else 0)
        packed.append(pack(number, admitted_at_ms, reserved_tokens, actual_tokens, flags, len(buckets)))
    return packed


def _marker(incarnation: str) -> bytes:
    return (MARKER_PREFIX + incarnation).encode()


def takes_field(incarnation: str) -> bytes:
    """The field of a hash that holds an incarnation's takes."""
    return _marker(incarnation + TAKES_SUFFIX)


_SETTLE_VALUES_MAX = 4000
"""In Lua a C function, here `struct.unpack`, can return at most 8000 values."""


def first_batch(settlements: Sequence[SettlementFigures]) -> tuple[Sequence[SettlementFigures], bool]:
    """The oldest settlements, as many as one call of the script can take; whether all have the same buckets."""
    if len(settlements) == 1:
        return settlements, True
    buckets, is_uniform, values = settlements[0][0].buckets, True, 0
    for count, settlement in enumerate(settlements):
        own = settlement[0].buckets
        values += 6 + 2 * len(own)
        if values > _SETTLE_VALUES_MAX and count:
            return settlements[:count], is_uniform
        is_uniform = is_uniform and (own is buckets or own == buckets)
    return settlements, is_uniform


def _places(groups: Iterable[str]) -> dict[str, int]:
    return {group: place for place, group in enumerate(dict.fromkeys(groups), 1)}


def _six_bytes(number: int) -> bytes:
    return number.to_bytes(6, "little")


def _seven_bytes(number: int) -> bytes:
    return number.to_bytes(7, "little")
