"""Two brute-force models that bound the counters from both sides. Simple, so that they share no mistake with them.

Each event is remembered by itself. The exact log forgets it when its window has passed: what it refuses must not be
admitted. The late log forgets it a granule later: what it admits must not be refused.
"""

from dataclasses import dataclass, field

from policy.limits.effective import Bound
from policy.limits.limit import LimitType, Unit
from policy.limits.settlement import Estimate, Settlement

WINDOW_MS = {Unit.SECOND: 1000, Unit.MINUTE: 60_000}
GRANULE_MS = {Unit.SECOND: 20, Unit.MINUTE: 1000, Unit.DAY: 20_000}
DAY_MS = 86_400_000
EXACT_UP_TO = 64

Kind = tuple[LimitType, Unit]


@dataclass
class Event:
    """A number of requests or tokens at one instant."""

    at_ms: int
    count: int


@dataclass
class Bucket:
    """Every event of one counting group under one kind of limit."""

    window_ms: int
    events: list[Event] = field(default_factory=list)
    was_merged: bool = False
    """Whether the log ever had a threshold that lets it merge events."""

    def least(self, now_ms: int) -> int:
        """What the exact log counts."""
        return sum(event.count for event in self.events if event.at_ms + self.window_ms >= now_ms)

    def most(self, now_ms: int, granule_ms: int) -> int:
        """What the log that forgets a granule later counts."""
        late_ms = granule_ms - 1 if self.was_merged else 0
        return sum(event.count for event in self.events if event.at_ms + self.window_ms + late_ms >= now_ms)

    def take_back(self, at_ms: int, count: int, now_ms: int) -> None:
        """Out of what happened at `at_ms`, if that still counts for certain."""
        if at_ms + self.window_ms < now_ms:
            return
        for event in self.events:
            if event.at_ms == at_ms and count:
                back = min(count, event.count)
                event.count -= back
                count -= back


class BruteForce:
    """Both models of one hash. A day is the sum of its events."""

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._buckets: dict[tuple[str, Kind], Bucket] = {}
        self._margins: dict[tuple[str, Kind], Bucket] = {}
        self._day_requests: dict[tuple[str, int], int] = {}
        self._day_tokens: dict[tuple[str, int], int] = {}
        self._applied: dict[str, int] = {}

    def least(self, bound: Bound, now_ms: int) -> int:
        return self._of_the_day(bound, now_ms) + self._bucket(bound).least(now_ms)

    def most(self, bound: Bound, now_ms: int) -> int:
        granule_ms = GRANULE_MS[bound.limit.unit]
        return self._of_the_day(bound, now_ms) + self._bucket(bound).most(now_ms, granule_ms)

    def least_margin(self, bound: Bound, now_ms: int) -> int:
        return self._margin(bound).least(now_ms)

    def most_margin(self, bound: Bound, now_ms: int) -> int:
        return self._margin(bound).most(now_ms, GRANULE_MS[bound.limit.unit])

    def admitted(self, bounds: tuple[Bound, ...], estimate: Estimate, now_ms: int) -> None:
        for bound in bounds:
            cost = 1 if bound.limit.type is LimitType.REQUEST else estimate.expected
            if bound.limit.type is LimitType.TOKEN:
                self._margin(bound).events.append(Event(now_ms, estimate.margin))
            if (bound.limit.type, bound.limit.unit) == (LimitType.REQUEST, Unit.DAY):
                self._count_day(self._day_requests, bound.counting_group, now_ms, 1)
            else:
                self._bucket(bound).events.append(Event(now_ms, cost))

    def settled(self, bounds: tuple[Bound, ...], incarnation: str, settlement: Settlement, now_ms: int) -> None:
        """`bounds`: those that bound the call when it was admitted."""
        if settlement.number <= self._applied.get(incarnation, 0):
            return
        self._applied[incarnation] = settlement.number
        for bound in bounds:
            if bound.limit.type is LimitType.TOKEN:
                self._settle_tokens(bound, settlement, now_ms)
            elif settlement.given_back:
                self._give_back(bound, settlement.reservation.admitted_at_ms, now_ms)

    def _settle_tokens(self, bound: Bound, settlement: Settlement, now_ms: int) -> None:
        reservation, bucket = settlement.reservation, self._bucket(bound)
        self._margin(bound).take_back(reservation.admitted_at_ms, reservation.margin_tokens, now_ms)
        if bound.limit.unit is Unit.DAY:
            bucket.take_back(reservation.admitted_at_ms, reservation.reserved_tokens, now_ms)
            self._count_day(self._day_tokens, bound.counting_group, now_ms, settlement.actual_tokens)
        elif settlement.actual_tokens > reservation.reserved_tokens:
            bucket.events.append(Event(now_ms, settlement.actual_tokens - reservation.reserved_tokens))
        else:
            bucket.take_back(reservation.admitted_at_ms, reservation.reserved_tokens - settlement.actual_tokens, now_ms)

    def _give_back(self, bound: Bound, admitted_at_ms: int, now_ms: int) -> None:
        if bound.limit.unit is not Unit.DAY:
            self._bucket(bound).take_back(admitted_at_ms, 1, now_ms)
        elif admitted_at_ms // DAY_MS == now_ms // DAY_MS:
            self._count_day(self._day_requests, bound.counting_group, now_ms, -1)

    def _bucket(self, bound: Bound) -> Bucket:
        return self._of(self._buckets, bound)

    def _margin(self, bound: Bound) -> Bucket:
        return self._of(self._margins, bound)

    def _of(self, buckets: dict[tuple[str, Kind], Bucket], bound: Bound) -> Bucket:
        unit, threshold = bound.limit.unit, bound.limit.threshold
        made = Bucket(WINDOW_MS.get(unit, self._lease_ms))
        bucket = buckets.setdefault((bound.counting_group, (bound.limit.type, unit)), made)
        bucket.was_merged = bucket.was_merged or unit is Unit.DAY or threshold > EXACT_UP_TO
        return bucket

    def _of_the_day(self, bound: Bound, now_ms: int) -> int:
        if bound.limit.unit is not Unit.DAY:
            return 0
        days = self._day_requests if bound.limit.type is LimitType.REQUEST else self._day_tokens
        return days.get((bound.counting_group, now_ms // DAY_MS), 0)

    def _count_day(self, days: dict[tuple[str, int], int], group: str, now_ms: int, count: int) -> None:
        day = (group, now_ms // DAY_MS)
        days[day] = days.get(day, 0) + count
