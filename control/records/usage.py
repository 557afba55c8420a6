"""Usage of limits: which bucket counts a limit, and how much of it. Values only."""

from typing import NamedTuple

from policy.limits.kinds import LimitType, Unit
from policy.limits.starts import WindowCount


class Bucket(NamedTuple):
    """A counting group in a hash: `Plan.key` and `Bound.counting_group`."""

    key: str
    group_id: str


class Meter(NamedTuple):
    """The bucket that counts a limit, and the kind of the limit."""

    bucket: Bucket
    type: LimitType
    unit: Unit


class Used(NamedTuple):
    """The amount that a limit counts now, and the ms until it counts nothing.

    These are 0 when a rolling window counts nothing, and of calls in flight, of which nobody can tell.

    Of usage limits, requests admitted and tokens settled in the window; of rate limits, reserved tokens as well.
    """

    amount: int
    resets_in_ms: int


class BucketStart(NamedTuple):
    """The figures that a bucket has counted at least, of windows that have not ended."""

    bucket: Bucket
    counts: tuple[WindowCount, ...]
