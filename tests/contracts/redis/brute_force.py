"""Two brute-force models that bound the counters from both sides. Simple, so that they share no mistake with them.

Each event is remembered by itself. The exact log forgets it when its window has passed: what it refuses must not be
admitted. The late log forgets it a granule later, and does not know how long a group was idle after the clock stepped
back: what it admits must not be refused.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from policy.limits.effective import Bound
from policy.limits.kinds import LimitType, Unit
from policy.limits.settlement import Estimate, Settlement

WINDOW_MS = {Unit.SECOND: 1000, Unit.MINUTE: 60_000}
GRANULE_MS = {Unit.SECOND: 20, Unit.MINUTE: 1000, Unit.DAY: 20_000, Unit.MONTH: 20_000}
EXACT_UP_TO = 64

Kind = tuple[LimitType, Unit]


class Moment(NamedTuple):
    """`clock_ms`: what the clock shows. `passed_ms`: all that it went forward; its steps back are left out."""

    clock_ms: int
    passed_ms: int


@dataclass
class Event:
    """A number of requests or tokens that were counted at `at_ms`, as the counters name the time. `most`: how many are
    left if what may be given back was not."""

    at_ms: int
    passed_ms: int
    count: int
    most: int


@dataclass
class Bucket:
    """Every event of one counting group under one kind of limit."""

    window_ms: int
    events: list[Event] = field(default_factory=list)
    was_merged: bool = False
    """True once the log had a threshold that lets it merge events."""

    def add(self, at_ms: int, now: Moment, count: int) -> None:
        self.events.append(Event(at_ms, now.passed_ms, count, count))

    def least(self, now: Moment) -> int:
        """Return the count of the exact log."""
        return sum(event.count for event in self.events if event.passed_ms + self.window_ms >= now.passed_ms)

    def most(self, now: Moment, granule_ms: int, resumed_ms: int) -> int:
        """The count of a log that forgets a granule later; events before `resumed_ms` leave as late as if they had come
        then."""
        oldest_ms = now.passed_ms - self.window_ms - (granule_ms - 1 if self.was_merged else 0)
        return sum(event.most for event in self.events if max(event.passed_ms, resumed_ms) >= oldest_ms)

    def take_back(self, at_ms: int, count: int, now: Moment, *, is_found: bool) -> None:
        """Subtract from the events at `at_ms`, if they count for certain. `is_found`: the counters find them."""
        for event in self.events:
            if event.at_ms == at_ms and event.passed_ms + self.window_ms >= now.passed_ms:
                back = min(count, event.count)
                event.count -= back
                count -= back
                if is_found:
                    event.most -= back


class BruteForce:
    """Both models of one hash. A day or month is the sum of its events."""

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._buckets: dict[tuple[str, Kind], Bucket] = {}
        self._margins: dict[tuple[str, Kind], Bucket] = {}
        self._counted: dict[tuple[str, Kind, str], int] = {}
        self._most_counted: dict[tuple[str, Kind, str], int] = {}
        self._applied: dict[str, int] = {}
        self._has_stepped = False
        """True after the clock stepped back: entries may have been moved, and what is given back may not be found."""
        self._resumed_ms: dict[str, int] = {}

    def step_back(self) -> None:
        self._has_stepped = True
        self._resumed_ms.clear()

    def resume(self, groups: "set[str]", now: Moment) -> None:
        """A script has counted in these groups: from here on it knows how much time passes."""
        for group in groups:
            self._resumed_ms.setdefault(group, now.passed_ms)

    def least(self, bound: Bound, now: Moment) -> int:
        return self._in_the_calendar(self._counted, bound, now) + self._bucket(bound).least(now)

    def most(self, bound: Bound, now: Moment) -> int:
        return self._in_the_calendar(self._most_counted, bound, now) + self._late(self._bucket(bound), bound, now)

    def least_margin(self, bound: Bound, now: Moment) -> int:
        return self._margin(bound).least(now)

    def most_margin(self, bound: Bound, now: Moment) -> int:
        return self._late(self._margin(bound), bound, now)

    def _late(self, bucket: Bucket, bound: Bound, now: Moment) -> int:
        resumed_ms = self._resumed_ms[bound.counting_group] if self._has_stepped else -1
        return bucket.most(now, GRANULE_MS[bound.limit.unit], resumed_ms)

    def admitted(self, bounds: tuple[Bound, ...], estimate: Estimate, at_ms: int, now: Moment) -> None:
        for bound in bounds:
            expected, margin = estimate.of(bound.limit.type)
            if bound.limit.type is not LimitType.REQUEST:
                self._margin(bound).add(at_ms, now, margin)
                self._bucket(bound).add(at_ms, now, expected)
            elif bound.limit.unit in WINDOW_MS:
                self._bucket(bound).add(at_ms, now, 1)
            else:
                self._count(self._counted, bound, now, 1)
                self._count(self._most_counted, bound, now, 1)

    def settled(
        self, bounds: tuple[Bound, ...], incarnation: str, settlement: Settlement, admitted: Moment, now: Moment
    ) -> None:
        """`bounds`: those that bound the call when it was admitted."""
        if settlement.number <= self._applied.get(incarnation, 0):
            return
        self._applied[incarnation] = settlement.number
        for bound in bounds:
            if bound.limit.type is not LimitType.REQUEST:
                self._settle_tokens(bound, settlement, now)
            elif settlement.given_back:
                self._give_back(bound, settlement.reservation.admitted_at_ms, admitted, now)

    def _settle_tokens(self, bound: Bound, settlement: Settlement, now: Moment) -> None:
        reservation = settlement.reservation
        bucket = self._bucket(bound)
        at_ms = reservation.admitted_at_ms
        is_found = not self._has_stepped
        self._margin(bound).take_back(at_ms, reservation.margin_tokens, now, is_found=is_found)
        excess = settlement.actual_tokens - reservation.reserved_tokens
        if bound.limit.unit not in WINDOW_MS:
            bucket.take_back(at_ms, reservation.reserved_tokens, now, is_found=is_found)
            self._count(self._counted, bound, now, settlement.actual_tokens)
            self._count(self._most_counted, bound, now, settlement.actual_tokens)
        elif excess > 0:
            bucket.add(-1, now, excess)
        else:
            bucket.take_back(at_ms, -excess, now, is_found=is_found)

    def _give_back(self, bound: Bound, at_ms: int, admitted: Moment, now: Moment) -> None:
        unit = bound.limit.unit
        if unit in WINDOW_MS:
            self._bucket(bound).take_back(at_ms, 1, now, is_found=not self._has_stepped)
        elif window_name(unit, admitted.clock_ms) == window_name(unit, now.clock_ms):
            self._count(self._counted, bound, now, -1)
            if not self._has_stepped:
                self._count(self._most_counted, bound, now, -1)

    def _bucket(self, bound: Bound) -> Bucket:
        return self._of(self._buckets, bound)

    def _margin(self, bound: Bound) -> Bucket:
        return self._of(self._margins, bound)

    def _of(self, buckets: dict[tuple[str, Kind], Bucket], bound: Bound) -> Bucket:
        unit = bound.limit.unit
        threshold = bound.limit.threshold
        new_bucket = Bucket(WINDOW_MS.get(unit, self._lease_ms))
        bucket = buckets.setdefault((bound.counting_group, (bound.limit.type, unit)), new_bucket)
        bucket.was_merged = bucket.was_merged or unit not in WINDOW_MS or threshold > EXACT_UP_TO
        return bucket

    def _in_the_calendar(self, counted: dict[tuple[str, Kind, str], int], bound: Bound, now: Moment) -> int:
        return counted.get(_place(bound, now), 0)

    def _count(self, counted: dict[tuple[str, Kind, str], int], bound: Bound, now: Moment, count: int) -> None:
        place = _place(bound, now)
        counted[place] = counted.get(place, 0) + count


def window_name(unit: Unit, clock_ms: int) -> str:
    """The day, such as 2024-10-04, or the month."""
    date = datetime.fromtimestamp(clock_ms // 1000, UTC).date().isoformat()
    return date[:7] if unit is Unit.MONTH else date


def _place(bound: Bound, now: Moment) -> tuple[str, Kind, str]:
    kind = bound.limit.type, bound.limit.unit
    return bound.counting_group, kind, window_name(bound.limit.unit, now.clock_ms)
