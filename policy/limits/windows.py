"""Windows: the log that counts a rolling one, and when one of the UTC calendar ends.

Times are whole milliseconds, of Redis' clock or of a group's own time (`counter_hash.py`). Pure: no I/O, no clock. The
reference for `policy/limits/log.lua`.

See docs/reference/limits.md#rolling-windows.
"""

from dataclasses import dataclass, replace

from policy.limits.kinds import Rolling, Unit, days_left, window_number
from policy.limits.limit import Limit

DAY_MS = 86_400_000
EXACT_UP_TO = 64
"""The largest threshold with an exact log: it merges only events of one millisecond."""
LEASE_GRANULE_MS = 20_000
LEASE_SLACK_MS = 60_000
"""An unsettled reservation of a usage limit's tokens expires this long after the longest time that a call can last."""


def window_ms(unit: Unit, lease_ms: int) -> int:
    """The time for which an entry of a log counts after its last event: `lease_ms` for reservations of usage limits."""
    return unit.window.window_ms if isinstance(unit.window, Rolling) else lease_ms


def granule_ms(unit: Unit, exact: bool) -> int:
    """The length of a granule, whose events share an entry. An exact log has granules of 1 ms."""
    if not isinstance(unit.window, Rolling):
        return LEASE_GRANULE_MS
    return 1 if exact else unit.window.granule_ms


def is_exact(limit: Limit) -> bool:
    """Return whether the log of this limit is exact."""
    return limit.threshold <= EXACT_UP_TO and limit.is_rate


def lease_ms(call_timeout_s: float) -> int:
    """The window of usage limits' reservations. With one granule it ends `LEASE_SLACK_MS` after the longest call."""
    return int(call_timeout_s * 1000) + LEASE_SLACK_MS - LEASE_GRANULE_MS


def day_of(now_ms: int) -> int:
    """The UTC day, counted from 1970-01-01."""
    return now_ms // DAY_MS


def until_end_ms(unit: Unit, now_ms: int) -> int:
    """The time until the next window of a usage limit's unit starts."""
    assert not isinstance(unit.window, Rolling)
    day = day_of(now_ms)
    return (day + days_left(unit.window, day)) * DAY_MS - now_ms


def window_at(unit: Unit, now_ms: int) -> tuple[int, int]:
    """The start and the end of the window of a usage limit's unit that has this time."""
    assert not isinstance(unit.window, Rolling)
    day = day_of(now_ms)
    first = day
    while window_number(unit.window, first - 1) == window_number(unit.window, day):
        first -= 1
    return first * DAY_MS, now_ms + until_end_ms(unit, now_ms)


@dataclass(frozen=True, slots=True)
class Entry:
    """`count` events between `first_ms` and `last_ms`. All of them leave the window when the last one does."""

    first_ms: int
    last_ms: int
    count: int


@dataclass(frozen=True, slots=True)
class RollingLog:
    """The events of a rolling window, oldest entry first. Its total is never below the true count."""

    entries: tuple[Entry, ...] = ()

    @property
    def total(self) -> int:
        return sum(entry.count for entry in self.entries)

    def live(self, window_ms: int, now_ms: int) -> "RollingLog":
        """Drop the entries that have left the window. An entry of exactly `window_ms` ago counts: times are
        truncated to the millisecond."""
        return RollingLog(tuple(entry for entry in self.entries if entry.last_ms + window_ms >= now_ms))

    def charged(self, count: int, granule_ms: int, now_ms: int) -> "RollingLog":
        """Adds `count` events at `now_ms`, to the newest entry if all of it is in the same granule.

        An entry that was moved may reach over two.
        """
        if count == 0:
            return self
        if not self.entries:
            return RollingLog((Entry(now_ms, now_ms, count),))
        newest = self.entries[-1]
        if newest.count == 0:
            return RollingLog((*self.entries[:-1], Entry(now_ms, now_ms, count)))
        if newest.first_ms // granule_ms == now_ms // granule_ms or newest.last_ms == now_ms:
            joined = Entry(newest.first_ms, now_ms, newest.count + count)
            return RollingLog((*self.entries[:-1], joined))
        return RollingLog((*self.entries, Entry(now_ms, now_ms, count)))

    def refunded(self, count: int, at_ms: int) -> "RollingLog":
        """Takes up to `count` events out of the entry that holds `at_ms`; changes nothing if that entry has left.

        An empty entry is removed, except the newest: it keeps the time of the last event.
        """
        entries: list[Entry] = []
        for index, entry in enumerate(self.entries):
            if entry.first_ms <= at_ms <= entry.last_ms:
                entry = replace(entry, count=max(0, entry.count - count))
            if entry.count or index == len(self.entries) - 1:
                entries.append(entry)
        return RollingLog(tuple(entries))

    def moved(self, by_ms: int) -> "RollingLog":
        """The same events, later by `by_ms`."""
        later = (Entry(entry.first_ms + by_ms, entry.last_ms + by_ms, entry.count) for entry in self.entries)
        return RollingLog(tuple(later))

    def merged(self, other: "RollingLog") -> "RollingLog":
        """The events of both logs, in the order in which they leave."""
        return RollingLog(tuple(sorted((*self.entries, *other.entries), key=lambda entry: entry.last_ms)))

    def room_at_ms(self, threshold: int, window_ms: int) -> int:
        """The first time at which the total is below `threshold`, if nothing else happens. 0: it is below now."""
        total = self.total
        room_at = 0
        for entry in self.entries:
            if total < threshold:
                break
            total -= entry.count
            room_at = entry.last_ms + window_ms + 1
        return room_at

    def empty_at_ms(self, window_ms: int) -> int:
        """The first time at which the log is empty, if nothing else happens. 0: it is empty now."""
        return self.entries[-1].last_ms + window_ms + 1 if self.total else 0
