"""A call's reservation in the counters, and the settlement that replaces it by the actual figure.

Both can be read from the journal, so that a settlement survives a crash (`proxy/accounting/recovery.py`).
They are named tuples because every call makes some (docs/hot-path.md#values-are-cheap-to-make).

See docs/reference/limits.md#settlement.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from policy.limits.counter_layout import masks_by_type
from policy.limits.kinds import LimitType

Buckets = tuple[tuple[str, int], ...]
"""The id of each counting group and the limits that bind there (`counter_layout.kind_mask`)."""


class Estimate(NamedTuple):
    """The tokens of a call that has not ended: how many are expected, and how many more it can cost at most.

    `output`, `output_margin`: the same of its output alone.
    """

    expected: int
    margin: int = 0
    output: int = 0
    output_margin: int = 0

    def of(self, type: LimitType) -> tuple[int, int]:
        """The tokens that count for limits of this type: expected, and margin. Input may turn out not to be cached."""
        parts = type.parts
        if parts is None:
            return 0, 0
        if not parts.output:
            return self.expected - self.output, max(0, self.margin - self.output_margin)
        if parts.uncached_input or parts.cached_input:
            return self.expected, self.margin
        return self.output, self.output_margin


NO_TOKENS = Estimate(0)


class Reservation(NamedTuple):
    """The part of an admitted call in one Redis hash: tokens of one type, and with those of TOKEN the request.

    `local`: admitted while Redis was away; Redis has not counted the call, so its settlement charges it in full.
    `reserved_tokens` and `margin_tokens`: of the call's `Estimate`. `type`: what the tokens are.
    """

    key: str
    buckets: Buckets
    admitted_at_ms: int
    reserved_tokens: int
    local: bool = False
    margin_tokens: int = 0
    type: LimitType = LimitType.TOKEN

    @classmethod
    def from_wire(cls, wire: list[Any], estimate: Estimate) -> "Reservation":
        """Read a reservation from a journal. Its masks tell the type."""
        key, buckets, admitted_at_ms, reserved_tokens, local = wire
        groups = tuple((group, mask) for group, mask in buckets)
        type = next((type for _, mask in groups for type in masks_by_type(mask)), LimitType.TOKEN)
        _, margin_tokens = estimate.of(type)
        return cls(
            key=key,
            buckets=groups,
            admitted_at_ms=admitted_at_ms,
            reserved_tokens=reserved_tokens,
            local=local,
            margin_tokens=margin_tokens,
            type=type,
        )


def reservations_of(
    key: str, buckets: Buckets, admitted_at_ms: int, estimate: Estimate, *, local: bool = False
) -> tuple[Reservation, ...]:
    """Everything that a call took: one reservation for each type of tokens that the buckets count."""
    reservations: list[Reservation] = []
    for type, own in buckets_by_type(buckets).items():
        expected, margin = estimate.of(type)
        reservations.append(
            Reservation(
                key=key,
                buckets=own,
                admitted_at_ms=admitted_at_ms,
                reserved_tokens=expected,
                local=local,
                margin_tokens=margin,
                type=type,
            )
        )
    return tuple(reservations)


def buckets_by_type(buckets: Sequence[tuple[str, int]]) -> dict[LimitType, Buckets]:
    """The buckets that count tokens of each type. Requests are with those of TOKEN."""
    parts: dict[LimitType, list[tuple[str, int]]] = {}
    for group, mask in buckets:
        for type, part in masks_by_type(mask).items():
            parts.setdefault(type, []).append((group, part))
    return {type: tuple(own) for type, own in parts.items()}


class Settlement(NamedTuple):
    """The actual figure of one reservation. `number`: rises per (key, worker incarnation), so it is applied once.

    `given_back`: no byte of the call was written upstream, so its request is returned as well.
    """

    reservation: Reservation
    number: int
    actual_tokens: int
    given_back: bool = False
