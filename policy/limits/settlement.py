"""What an admitted call holds in the counters, and how it is put right at the end.

Both travel through the journal, so that a settlement survives a crash: `to_wire` and `from_wire` are JSON shapes.
Named tuples, since each call makes some: a frozen dataclass takes three times as long to make.

See docs/reference/limits.md#settlement.
"""

from typing import Any, NamedTuple


class Reservation(NamedTuple):
    """The reservation of one call in one Redis hash.

    `buckets`: (counting group, what binds there as the bits of `policy.limits.counter_layout.kind_mask`). `local`:
    admitted while Redis was away, so Redis has yet to hear of it: settling charges the call instead of correcting an
    estimate.
    """

    key: str
    buckets: tuple[tuple[str, int], ...]
    admitted_at_ms: int
    reserved_tokens: int
    local: bool = False

    def to_wire(self) -> list[Any]:
        buckets = [list(bucket) for bucket in self.buckets]
        return [self.key, buckets, self.admitted_at_ms, self.reserved_tokens, self.local]

    @classmethod
    def from_wire(cls, wire: list[Any]) -> "Reservation":
        key, buckets, admitted_at_ms, reserved_tokens, local = wire
        return cls(key, tuple((group, parts) for group, parts in buckets), admitted_at_ms, reserved_tokens, local)


class Settlement(NamedTuple):
    """The truth about one reservation. `number`: per (key, worker incarnation), from 1, rising; applied at most once.

    `given_back`: no byte of the call was written upstream, so its request is returned as well.
    """

    reservation: Reservation
    number: int
    actual_tokens: int
    given_back: bool = False
