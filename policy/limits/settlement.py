"""A call's reservation in the counters, and the settlement that replaces it by the actual figure.

Both can be read from the journal, so that a settlement survives a crash (`proxy/accounting/recovery.py`).
They are named tuples because every call makes some (docs/hot-path.md#values-are-cheap-to-make).

See docs/reference/limits.md#settlement.
"""

from typing import Any, NamedTuple


class Estimate(NamedTuple):
    """The tokens of a call that has not ended: how many are expected, and how many more it can cost at most."""

    expected: int
    margin: int = 0


NO_TOKENS = Estimate(0)


class Reservation(NamedTuple):
    """The requests and tokens that an admitted call has taken in one Redis hash.

    `buckets`: per counting group, its id and the limits that bind there (`counter_layout.kind_mask`). `local`: admitted
    while Redis was away; Redis has not counted the call, so its settlement charges it in full. `reserved_tokens` and
    `margin_tokens`: the call's `Estimate`.
    """

    key: str
    buckets: tuple[tuple[str, int], ...]
    admitted_at_ms: int
    reserved_tokens: int
    local: bool = False
    margin_tokens: int = 0

    @classmethod
    def from_wire(cls, wire: list[Any], margin_tokens: int = 0) -> "Reservation":
        key, buckets, admitted_at_ms, reserved_tokens, local = wire
        groups = tuple((group, mask) for group, mask in buckets)
        return cls(key, groups, admitted_at_ms, reserved_tokens, local, margin_tokens)


class Settlement(NamedTuple):
    """The actual figure of one reservation. `number`: rises per (key, worker incarnation), so it is applied once.

    `given_back`: no byte of the call was written upstream, so its request is returned as well.
    """

    reservation: Reservation
    number: int
    actual_tokens: int
    given_back: bool = False
