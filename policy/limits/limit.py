"""A limit (type, unit, threshold), and the rules for sets of limits.

See docs/reference/management-api.md#limit-objects.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from policy.limits.kinds import RATE_UNITS, USAGE_TYPES, USAGE_UNITS, LimitType, Unit

MAX_THRESHOLD = 2**53 - 1
"""The largest threshold: the largest whole number that is exact in JSON and in Lua."""
MIN_THRESHOLD = 0
"""The threshold that refuses every call."""
MAX_RATE_LIMITS = len(LimitType)
MAX_USAGE_LIMITS = len(USAGE_TYPES) * len(USAGE_UNITS)
"""The most limits in a list of a slug: see `SlugLimits`."""
_MEMBERS = frozenset(("type", "unit", "threshold"))


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit: at most `threshold` of `type` in one `unit`; of calls in flight, at any time."""

    type: LimitType
    unit: Unit
    threshold: int

    @property
    def is_rate(self) -> bool:
        """Return whether this is a rate limit, with a rolling window. Otherwise it is a usage limit."""
        return self.unit.is_rolling


@lru_cache(4096)
def limit_of(type: str, unit: str, threshold: int) -> Limit:
    """The limit that texts describe. Groups repeat a few, and to look up enumerations is most of their reading."""
    return Limit(LimitType[type], Unit[unit], threshold)


def limit_to_wire(limit: Limit) -> dict[str, Any]:
    """A limit as the API, the database column and the snapshot hold it."""
    return {"type": limit.type.value, "unit": limit.unit.value, "threshold": limit.threshold}


def limit_from_wire(body: dict[str, Any]) -> Limit:
    """Raises ValueError, KeyError or TypeError for what this version does not know: to ignore it would drop a limit."""
    if unknown := body.keys() - _MEMBERS:
        raise ValueError(f"unknown members: {', '.join(sorted(unknown))}")
    return limit_of(body["type"], body["unit"], body["threshold"])


@dataclass(frozen=True, slots=True)
class SlugLimits:
    """An entry of a group's `models[]`: a slug that the group may call, and its limits.

    At most one rate limit per type, and one usage limit per type and unit.
    """

    slug: str
    rate_limits: tuple[Limit, ...] = ()
    usage_limits: tuple[Limit, ...] = ()

    @property
    def limits(self) -> tuple[Limit, ...]:
        return self.rate_limits + self.usage_limits


class IllegalLimitsError(ValueError):
    """The set of limits breaks a rule. The message names the slug and the rule."""


def check_slug_limits(entry: SlugLimits) -> None:
    """Raise `IllegalLimitsError` unless the limits of `entry` have their units, are in range, and none is twice."""
    rates = " or ".join(RATE_UNITS)
    usages = " or ".join(USAGE_UNITS)
    if any(not limit.is_rate for limit in entry.rate_limits):
        raise IllegalLimitsError(
            f"{entry.slug}: a rate limit's unit is {rates}; limits per {usages} belong in usage_limits"
        )
    if any(limit.is_rate for limit in entry.usage_limits):
        raise IllegalLimitsError(
            f"{entry.slug}: a usage limit's unit is {usages}; limits per {rates} belong in rate_limits"
        )
    if any(limit.type.is_concurrent for limit in entry.usage_limits):
        raise IllegalLimitsError(f"{entry.slug}: a usage limit's type is {' or '.join(USAGE_TYPES)}")
    if len({limit.type for limit in entry.rate_limits}) < len(entry.rate_limits):
        raise IllegalLimitsError(f"{entry.slug}: at most one rate limit per type")
    if len({(limit.type, limit.unit) for limit in entry.usage_limits}) < len(entry.usage_limits):
        raise IllegalLimitsError(f"{entry.slug}: at most one usage limit per type and unit")
    if any(not MIN_THRESHOLD <= limit.threshold <= MAX_THRESHOLD for limit in entry.limits):
        raise IllegalLimitsError(f"{entry.slug}: a threshold is a whole number from {MIN_THRESHOLD} to {MAX_THRESHOLD}")
