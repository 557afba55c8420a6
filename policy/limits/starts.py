"""The start of usage limits: one that is added or changed has counted what is committed of its window.

Pure: no I/O, no clock. The reference for `control/edges/redis/start.lua`; property tests compare the two.

See docs/reference/limits.md#days.
"""

from collections.abc import Iterable
from typing import NamedTuple

from policy.limits.counter_hash import CounterHash, number_of
from policy.limits.kinds import Kind
from policy.limits.limit import SlugLimits


class WindowCount(NamedTuple):
    """The amount that a usage limit has counted in the calendar window with this number."""

    kind: Kind
    window: int
    amount: int


class UsageLimitKey(NamedTuple):
    """The place of a usage limit in a group."""

    slug: str
    kind: Kind


def changed_usage_limits(old: Iterable[SlugLimits], new: Iterable[SlugLimits]) -> frozenset[UsageLimitKey]:
    """The usage limits that `new` adds, or whose threshold it changes."""
    before = {entry.slug: entry.usage_limits for entry in old}
    return frozenset(
        UsageLimitKey(entry.slug, (limit.type, limit.unit))
        for entry in new
        for limit in entry.usage_limits
        if limit not in before.get(entry.slug, ())
    )


def raise_counts(counters: CounterHash, group: str, least: Iterable[WindowCount], clock_ms: int) -> bool:
    """Raise a group's counts to at least these figures, of windows that have not ended. Returns whether any rose.

    What is counted already stays: so it does not matter how often this is done.
    """
    counts = counters.counts_at(group, clock_ms)
    raised = counts
    for kind, window, amount in least:
        missing = amount - counts.count(kind)
        if missing > 0 and number_of(kind, counts.day) == window:
            raised = raised.with_count(kind, missing)
    if raised is counts:
        return False
    counters.groups[group] = raised
    return True
