"""One Redis hash of counters in plain Python: its groups, their time, their days. Pure: no I/O, no clock.

The reference for `policy/limits/log.lua`. What admits and settles is in `policy/limits/admission.py`.

See docs/reference/limits.md#time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from policy.limits.counter_layout import DAY_PAIR
from policy.limits.in_flight.places import NO_PLACES, Places
from policy.limits.kinds import Kind, Rolling, window_number
from policy.limits.limit import Limit
from policy.limits.take_numbers import TakeLog
from policy.limits.windows import RollingLog, day_of, window_ms

MOST_THRESHOLDS = 2
"""The bound on the second sum of a limit that counts tokens, in thresholds: what is used, and what the calls in flight
can cost at most (decision 0062)."""

WINDOWS_KEPT = 2
"""The number of calendar windows that are kept beside the one that counts."""

CountPlace = tuple[Kind, ...]
"""The kinds whose calendar counts are stored together."""


def place_of(kind: Kind) -> CountPlace:
    """The place where the count of a usage limit's kind is stored."""
    return DAY_PAIR if kind in DAY_PAIR else (kind,)


@dataclass(frozen=True, slots=True)
class CalendarCounts:
    """The counts of one calendar window, one for each kind that is stored with it."""

    number: int
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Counts:
    """The counters of one counting group. The log of a usage limit that counts tokens holds unsettled reservations.

    `last_ms`: the group's time when they last changed. `ahead_ms`: how far that time is ahead of Redis' clock.
    `ahead_since_ms`: the last time before that changed. `day`: the clock's. `counted`: what the calendar windows
    of that day have counted. `other_windows`: those that counted something, the latest first. `margins`: of each kind
    that counts tokens, how much more the calls in flight can cost than was expected of them.
    """

    last_ms: int = 0
    day: int = 0
    counted: Mapping[CountPlace, tuple[int, ...]] = field(default_factory=dict)
    logs: Mapping[Kind, RollingLog] = field(default_factory=dict)
    margins: Mapping[Kind, RollingLog] = field(default_factory=dict)
    ahead_ms: int = 0
    ahead_since_ms: int = 0
    other_windows: Mapping[CountPlace, tuple[CalendarCounts, ...]] = field(default_factory=dict)

    def log(self, kind: Kind) -> RollingLog:
        return self.logs.get(kind) or RollingLog()

    def with_log(self, kind: Kind, log: RollingLog) -> "Counts":
        return replace(self, logs={**self.logs, kind: log})

    def margin(self, kind: Kind) -> RollingLog:
        return self.margins.get(kind) or RollingLog()

    def with_margin(self, kind: Kind, log: RollingLog) -> "Counts":
        return replace(self, margins={**self.margins, kind: log})

    def refunded(self, kind: Kind, count: int, at_ms: int) -> "Counts":
        """Takes events out of the entry that holds `at_ms`. Does nothing if that entry has left.

        An entry of before a step of the clock may have been moved: then an older one is found or none, so that too much
        stays counted.
        """
        return self.with_log(kind, self.log(kind).refunded(count, at_ms))

    def margin_refunded(self, kind: Kind, count: int, at_ms: int) -> "Counts":
        """The same for a margin."""
        return self.with_margin(kind, self.margin(kind).refunded(count, at_ms))

    def counted_now(self, kind: Kind, at_ms: int) -> bool:
        """Return whether a take of this time counted in the present window. False if the clock has stepped since."""
        return at_ms > self.ahead_since_ms and self.is_present(kind, at_ms - self.ahead_ms)

    def is_present(self, kind: Kind, clock_ms: int) -> bool:
        """Return whether the calendar window of this time is the one that counts."""
        return number_of(kind, day_of(clock_ms)) == number_of(kind, self.day)

    def count(self, kind: Kind) -> int:
        """The count of the calendar window: requests, or settled tokens."""
        place = place_of(kind)
        return self.counted.get(place, _nothing(place))[place.index(kind)]

    def with_count(self, kind: Kind, by: int) -> "Counts":
        """Adds to what the calendar window has counted. Never below zero."""
        place = place_of(kind)
        counts = list(self.counted.get(place, _nothing(place)))
        counts[place.index(kind)] = max(0, self.count(kind) + by)
        return replace(self, counted={**self.counted, place: tuple(counts)})

    def used(self, kind: Kind) -> int:
        """The amount of the threshold of `kind` that is used, with what is expected of the calls in flight."""
        count = 0 if kind[1].is_rolling else self.count(kind)
        return count + self.log(kind).total

    def room(self, limit: Limit) -> int:
        """The amount that `limit` still admits. For tokens, also by the most that the calls in flight can cost."""
        kind = limit.type, limit.unit
        count = self.used(kind)
        room = limit.threshold - count
        if limit.type.parts is None:
            return room
        return min(room, MOST_THRESHOLDS * limit.threshold - count - self.margin(kind).total)

    def ahead_at(self, clock_ms: int) -> int:
        """The ms by which the group's time is ahead: what Redis' clock has stepped back since the group was first used.

        The time of a group never goes back, so its entries keep their age.
        """
        return max(self.ahead_ms, self.last_ms - clock_ms)

    def at(self, clock_ms: int, ahead_ms: int) -> "Counts":
        """Brings the group to a time, and to the clock's day."""
        counts = self if ahead_ms == self.ahead_ms else self._with_ahead(clock_ms, ahead_ms)
        return replace(counts._on_day(day_of(clock_ms)), last_ms=clock_ms + ahead_ms)

    def _with_ahead(self, clock_ms: int, ahead_ms: int) -> "Counts":
        """Set how far the group's time is ahead. Where that time jumps, move the entries along: they keep their age."""
        counts = replace(self, ahead_ms=ahead_ms, ahead_since_ms=self.last_ms)
        by_ms = ahead_ms - self.ahead_at(clock_ms)
        if not by_ms:
            return counts
        logs = _moved(self.logs, by_ms)
        margins = _moved(self.margins, by_ms)
        return replace(counts, logs=logs, margins=margins)

    def _on_day(self, day: int) -> "Counts":
        """Keeps what the windows counted that have counted something last: a clock that steps over an end and back
        finds them again. One that has counted nothing since it was found again keeps its place among them."""
        if day == self.day:
            return self
        counts = replace(self, day=day)
        for place in self.counted:
            if number_of(place[0], day) != number_of(place[0], self.day):
                counts = counts._with_window(place, CalendarCounts(number_of(place[0], self.day), self.counted[place]))
        return counts

    def _with_window(self, place: CountPlace, previous: CalendarCounts) -> "Counts":
        windows = self.other_windows.get(place, ())
        if previous not in windows:
            others = [one for one in windows if one.number != previous.number]
            windows = tuple([previous, *others] if any(previous.counts) else others)
        number = number_of(place[0], self.day)
        counts = next((one.counts for one in windows if one.number == number), _nothing(place))
        return replace(
            self,
            counted={**self.counted, place: counts},
            other_windows={**self.other_windows, place: windows[:WINDOWS_KEPT]},
        )


def _nothing(place: CountPlace) -> tuple[int, ...]:
    return (0,) * len(place)


def number_of(kind: Kind, day: int) -> int:
    """The number of the calendar window of a usage limit that has this day."""
    calendar = kind[1].window
    assert not isinstance(calendar, Rolling)
    return window_number(calendar, day)


@dataclass(frozen=True, slots=True)
class CounterHash:
    """One Redis hash: the counters of its groups, and the places of their calls in flight; per worker incarnation, the
    number of the last settlement that was applied, and the unanswered takes.

    `admit`, `settle`, `charge` and `revoke_takes` change the dictionaries and nothing else.
    """

    lease_ms: int
    groups: dict[str, Counts] = field(default_factory=dict)
    applied: dict[str, int] = field(default_factory=dict)
    takes: dict[str, TakeLog] = field(default_factory=dict)
    places: dict[str, Places] = field(default_factory=dict)

    def places_at(self, group: str, clock_ms: int) -> Places:
        """A group's calls in flight now."""
        return self.places.get(group, NO_PLACES).at(clock_ms)

    def last_ms(self, group: str) -> int:
        """The time at which the group's counters last changed, in the group's time; 0 if never."""
        return self._of(group).last_ms

    def ahead_ms(self, groups: Iterable[str], clock_ms: int) -> int:
        """The ms by which the time of these groups is ahead of the clock: the most of any of them."""
        return max((self._of(group).ahead_at(clock_ms) for group in groups), default=0)

    def counts_at(self, group: str, clock_ms: int, ahead_ms: int | None = None) -> Counts:
        """A group's counters now: without entries that have left their window; of the clock's day.

        `ahead_ms`: of all groups of a call; by default the group's own.
        """
        counts = self._of(group)
        counts = counts.at(clock_ms, counts.ahead_at(clock_ms) if ahead_ms is None else ahead_ms)
        logs = self._live(counts.logs, counts.last_ms)
        margins = self._live(counts.margins, counts.last_ms)
        return replace(counts, logs=logs, margins=margins)

    def steps(self, state: Mapping[str, Counts]) -> bool:
        """Return whether a clock that stepped back has put a group's time further ahead than is stored."""
        return any(counts.ahead_ms != self._of(group).ahead_ms for group, counts in state.items())

    def _of(self, group: str) -> Counts:
        return self.groups.get(group) or Counts()

    def _live(self, logs: Mapping[Kind, RollingLog], now_ms: int) -> dict[Kind, RollingLog]:
        return {kind: log.live(window_ms(kind[1], self.lease_ms), now_ms) for kind, log in logs.items()}


def _moved(logs: Mapping[Kind, RollingLog], by_ms: int) -> dict[Kind, RollingLog]:
    return {kind: log.moved(by_ms) for kind, log in logs.items()}
