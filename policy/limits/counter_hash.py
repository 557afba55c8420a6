"""One Redis hash of counters in plain Python: its groups, their time, their days. Pure: no I/O, no clock.

The reference for `proxy/edges/redis/log.lua`. What admits and settles is in `policy/limits/admission.py`.

See docs/reference/limits.md#time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from policy.limits.limit import Limit, LimitType, Unit
from policy.limits.take_numbers import TakeLog
from policy.limits.windows import RollingLog, day_of, window_ms

Kind = tuple[LimitType, Unit]
DAY_TOKENS = (LimitType.TOKEN, Unit.DAY)
DAY_REQUESTS = (LimitType.REQUEST, Unit.DAY)

MOST_THRESHOLDS = 2
"""How many thresholds a TOKEN limit's second sum must be below: what is used, and what the calls in flight can cost at
most (decision 0062)."""


DAYS_KEPT = 2
"""How many days are kept beside the one that counts."""


@dataclass(frozen=True, slots=True)
class DayCounts:
    """The counts of one UTC day."""

    day: int = 0
    requests: int = 0
    tokens: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.requests and not self.tokens


@dataclass(frozen=True, slots=True)
class Counts:
    """The counters of one counting group. The (TOKEN, DAY) log holds unsettled reservations.

    `last_ms`: the group's time when they last changed. `ahead_ms`: how far that time is ahead of Redis' clock.
    `ahead_since_ms`: the last time before that changed. `other_days`: those that counted something, the latest first.
    `margins`: of each kind of TOKEN limit, how much more the calls in flight can cost than was expected of them.
    """

    last_ms: int = 0
    today: DayCounts = DayCounts()
    logs: Mapping[Kind, RollingLog] = field(default_factory=dict)
    margins: Mapping[Kind, RollingLog] = field(default_factory=dict)
    ahead_ms: int = 0
    ahead_since_ms: int = 0
    other_days: tuple[DayCounts, ...] = ()

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

    def counted_today(self, at_ms: int) -> bool:
        """Whether a take of this time counted in the present day. A step of the clock since then leaves that open."""
        return at_ms > self.ahead_since_ms and day_of(at_ms - self.ahead_ms) == self.today.day

    def with_day(self, requests: int = 0, tokens: int = 0) -> "Counts":
        """Adds to what the day has counted. Never below zero."""
        counted = DayCounts(self.today.day, max(0, self.today.requests + requests), self.today.tokens + tokens)
        return replace(self, today=counted)

    def used(self, kind: Kind) -> int:
        """How much of the threshold of `kind` is used, with what is expected of the calls in flight."""
        if kind == DAY_REQUESTS:
            return self.today.requests
        return self.log(kind).total + (self.today.tokens if kind == DAY_TOKENS else 0)

    def room(self, limit: Limit) -> int:
        """How much `limit` still admits. A TOKEN limit also looks at what the calls in flight can cost at most."""
        kind = limit.type, limit.unit
        used = self.used(kind)
        room = limit.threshold - used
        if limit.type is LimitType.REQUEST:
            return room
        return min(room, MOST_THRESHOLDS * limit.threshold - used - self.margin(kind).total)

    def ahead_at(self, clock_ms: int) -> int:
        """How far the group's time is ahead: by what Redis' clock has stepped back since the group was first used.

        So the time of a group never goes back, and its entries keep their age.
        """
        return max(self.ahead_ms, self.last_ms - clock_ms)

    def at(self, clock_ms: int, ahead_ms: int) -> "Counts":
        """Brings the group to a time, and to the clock's day."""
        counts = self if ahead_ms == self.ahead_ms else self._with_ahead(clock_ms, ahead_ms)
        return replace(counts._on_day(day_of(clock_ms)), last_ms=clock_ms + ahead_ms)

    def _with_ahead(self, clock_ms: int, ahead_ms: int) -> "Counts":
        """Where the group's time jumps, its entries are moved along: they keep their age."""
        counts = replace(self, ahead_ms=ahead_ms, ahead_since_ms=self.last_ms)
        by_ms = ahead_ms - self.ahead_at(clock_ms)
        if not by_ms:
            return counts
        logs = _moved(self.logs, by_ms)
        margins = _moved(self.margins, by_ms)
        return replace(counts, logs=logs, margins=margins)

    def _on_day(self, day: int) -> "Counts":
        """Keeps what the days counted that have counted something last: a clock that steps over midnight and back finds
        them again. A day that has counted nothing since it was found again keeps its place among them."""
        if day == self.today.day:
            return self
        kept = self.other_days
        if self.today not in kept:
            others = [one for one in kept if one.day != self.today.day]
            kept = tuple(others if self.today.is_empty else [self.today, *others])
        today = next((one for one in kept if one.day == day), DayCounts(day))
        return replace(self, today=today, other_days=kept[:DAYS_KEPT])


@dataclass(frozen=True, slots=True)
class CounterHash:
    """One Redis hash: the counters of its groups; per worker incarnation, the number of the last settlement that was
    applied, and the unanswered takes.

    `admit`, `settle`, `charge` and `revoke_takes` change the three dictionaries and nothing else.
    """

    lease_ms: int
    groups: dict[str, Counts] = field(default_factory=dict)
    applied: dict[str, int] = field(default_factory=dict)
    takes: dict[str, TakeLog] = field(default_factory=dict)

    def last_ms(self, group: str) -> int:
        """When the group's counters last changed, in its time. 0: never."""
        return self._of(group).last_ms

    def ahead_ms(self, groups: Iterable[str], clock_ms: int) -> int:
        """How far these groups' time is ahead of the clock: of several, as far as of the one that is most ahead."""
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
        """Whether a clock that stepped back has put a group's time further ahead than is stored."""
        return any(counts.ahead_ms != self._of(group).ahead_ms for group, counts in state.items())

    def _of(self, group: str) -> Counts:
        return self.groups.get(group) or Counts()

    def _live(self, logs: Mapping[Kind, RollingLog], now_ms: int) -> dict[Kind, RollingLog]:
        return {kind: log.live(window_ms(kind[1], self.lease_ms), now_ms) for kind, log in logs.items()}


def _moved(logs: Mapping[Kind, RollingLog], by_ms: int) -> dict[Kind, RollingLog]:
    return {kind: log.moved(by_ms) for kind, log in logs.items()}
