"""The rules of admission and settlement in plain Python: the reference for take.lua, settle.lua and revoke.lua.

Pure: no I/O, no clock. Property tests compare it with the scripts. It also decides for a worker that has lost Redis
(`local` mode), and stands in for Redis in unit tests.

See docs/reference/limits.md#admission.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from policy.limits.counter_layout import KIND_NUMBER, KINDS, has_kind, is_exact_kind
from policy.limits.effective import Bound
from policy.limits.limit import Limit, LimitType, Unit
from policy.limits.settlement import Estimate, Settlement
from policy.limits.take_numbers import TakeLog, TakeRecord, TakeStamp
from policy.limits.windows import RollingLog, day_of, granule_ms, is_exact, until_midnight_ms, window_ms

Kind = tuple[LimitType, Unit]
_DAY_TOKENS = (LimitType.TOKEN, Unit.DAY)
_DAY_REQUESTS = (LimitType.REQUEST, Unit.DAY)

MOST_THRESHOLDS = 2
"""How many thresholds a TOKEN limit's second sum must be below: what is used, and what the calls in flight can cost at
most (decision 0062)."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The counters of one counting group. The (TOKEN, DAY) log holds unsettled reservations.

    `margins`: of each kind of TOKEN limit, how much more the calls in flight can cost than was expected of them.
    """

    last_ms: int = 0
    day: int = 0
    day_requests: int = 0
    day_tokens: int = 0
    logs: Mapping[Kind, RollingLog] = field(default_factory=dict)
    margins: Mapping[Kind, RollingLog] = field(default_factory=dict)

    def log(self, kind: Kind) -> RollingLog:
        return self.logs.get(kind) or RollingLog()

    def with_log(self, kind: Kind, log: RollingLog) -> "Counts":
        return replace(self, logs={**self.logs, kind: log})

    def margin(self, kind: Kind) -> RollingLog:
        return self.margins.get(kind) or RollingLog()

    def with_margin(self, kind: Kind, log: RollingLog) -> "Counts":
        return replace(self, margins={**self.margins, kind: log})

    def used(self, kind: Kind) -> int:
        """How much of the threshold of `kind` is used, with what is expected of the calls in flight."""
        if kind == _DAY_REQUESTS:
            return self.day_requests
        return self.log(kind).total + (self.day_tokens if kind == _DAY_TOKENS else 0)

    def room(self, limit: Limit) -> int:
        """How much `limit` still admits. A TOKEN limit also looks at what the calls in flight can cost at most."""
        kind = limit.type, limit.unit
        used = self.used(kind)
        room = limit.threshold - used
        if limit.type is LimitType.REQUEST:
            return room
        return min(room, MOST_THRESHOLDS * limit.threshold - used - self.margin(kind).total)


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

    def counts_at(self, group: str, now_ms: int) -> Counts:
        """A group's counters at `now_ms`: without entries that have left their window; zero for a new day."""
        counts = self.groups.get(group) or Counts()
        logs, margins = self._live(counts.logs, now_ms), self._live(counts.margins, now_ms)
        day = day_of(now_ms)
        if counts.day != day:
            return Counts(now_ms, day, 0, 0, logs, margins)
        return Counts(now_ms, day, counts.day_requests, counts.day_tokens, logs, margins)

    def _live(self, logs: Mapping[Kind, RollingLog], now_ms: int) -> dict[Kind, RollingLog]:
        return {kind: log.live(window_ms(kind[1], self.lease_ms), now_ms) for kind, log in logs.items()}

    def now_ms(self, groups: Iterable[str], clock_ms: int) -> int:
        """The clock, but never earlier than the last time stored, so that a clock that steps back frees no capacity."""
        return max([clock_ms, *(self.groups[group].last_ms for group in groups if group in self.groups)])


@dataclass(frozen=True, slots=True)
class Tightest:
    """The limit of one type with the least room. `bound`: its index. `reset_ms`: until nothing counts there."""

    bound: int
    remaining: int
    reset_ms: int


@dataclass(frozen=True, slots=True)
class Decision:
    """How many of the requests, in order, were admitted at `now_ms`, and the index of the bound that refused the rest.

    `retry_after_ms`: until a request would be admitted if nothing else happened. `counted_retry_after_ms`: the same,
    if all token reservations were settled at zero now. `hard_retry_after_ms`: until then nothing can admit a request;
    0 means that a settlement or a returned reservation may lift the refusal at any moment.
    """

    now_ms: int
    admitted: int
    refused_by: int | None
    retry_after_ms: int = 0
    counted_retry_after_ms: int = 0
    hard_retry_after_ms: int = 0
    requests: Tightest | None = None
    tokens: Tightest | None = None

    @property
    def too_late(self) -> bool:
        """The take refused itself because it was late or revoked: no bound refused, and nothing was counted."""
        return not self.admitted and self.refused_by is None


def admit(
    counters: CounterHash,
    bounds: Sequence[Bound],
    estimates: Sequence[Estimate],
    clock_ms: int,
    stamp: TakeStamp | None = None,
) -> Decision:
    """Admit the requests in order, each against all bounds at once, until a bound refuses.

    A token bound admits while used + expected is below its threshold, and used + expected + margin below twice that,
    whatever the call's own estimate, so a first call is never refused. Refused requests and late takes count nothing.
    """
    if stamp is not None and counters.takes.get(stamp.incarnation, TakeLog()).refuses(stamp, clock_ms):
        return Decision(clock_ms, 0, None)
    groups = dict.fromkeys(bound.counting_group for bound in bounds)
    now_ms = counters.now_ms(groups, clock_ms)
    state = {group: counters.counts_at(group, now_ms) for group in groups}
    admitted = 0
    for estimate in estimates:
        if min(_rooms(state, bounds)) < 1:
            break
        admitted += 1
        _charge(state, bounds, 1, estimate, now_ms)
    if admitted:
        counters.groups.update(state)
        if stamp is not None:
            known = counters.takes.get(stamp.incarnation, TakeLog())
            counters.takes[stamp.incarnation] = known.with_take(stamp, now_ms, admitted)
    rooms = _rooms(state, bounds)
    refused_by = None
    if admitted < len(estimates):
        refused_by = next(index for index, room in enumerate(rooms) if room < 1)
    refusing = [bound for bound, room in zip(bounds, rooms, strict=True) if refused_by is not None and room < 1]
    return Decision(
        now_ms=now_ms,
        admitted=admitted,
        refused_by=refused_by,
        retry_after_ms=max((_wait_ms(state, bound, counters.lease_ms, now_ms) for bound in refusing), default=0),
        counted_retry_after_ms=max(
            (_counted_wait_ms(state, bound, counters.lease_ms, now_ms) for bound in refusing), default=0
        ),
        hard_retry_after_ms=max((_hard_wait_ms(state, bound, now_ms) for bound in refusing), default=0),
        requests=_tightest(state, bounds, rooms, LimitType.REQUEST, now_ms),
        tokens=_tightest(state, bounds, rooms, LimitType.TOKEN, now_ms),
    )


def charge(counters: CounterHash, bounds: Sequence[Bound], requests: int, tokens: Estimate, clock_ms: int) -> None:
    """Count calls that were admitted elsewhere."""
    groups = dict.fromkeys(bound.counting_group for bound in bounds)
    now_ms = counters.now_ms(groups, clock_ms)
    state = {group: counters.counts_at(group, now_ms) for group in groups}
    _charge(state, bounds, requests, tokens, now_ms)
    counters.groups.update(state)


def revoke_takes(counters: CounterHash, incarnation: str, through: int) -> tuple[TakeRecord, ...]:
    """Refuse every take numbered up to `through` from now on. Returns the unanswered takes that ran, newest first."""
    log = counters.takes.get(incarnation, TakeLog()).revoked(through)
    counters.takes[incarnation] = log
    return log.records


def settle(counters: CounterHash, incarnation: str, settlements: Sequence[Settlement], clock_ms: int) -> int:
    """Replace estimates by actual figures. Returns how many settlements were new.

    Numbers rise within a batch. A number not above the last one applied was applied before and is skipped.
    """
    groups = dict.fromkeys(group for settlement in settlements for group, _ in settlement.reservation.buckets)
    now_ms = counters.now_ms(groups, clock_ms)
    new = 0
    for settlement in settlements:
        if settlement.number <= counters.applied.get(incarnation, 0):
            continue
        new += 1
        counters.applied[incarnation] = settlement.number
        for group, mask in settlement.reservation.buckets:
            counts = _correct_requests(counters.counts_at(group, now_ms), mask, settlement, now_ms)
            counters.groups[group] = _correct_tokens(counts, mask, settlement, now_ms)
    return new


def _kind(limit: Limit) -> Kind:
    return limit.type, limit.unit


def _rooms(state: Mapping[str, Counts], bounds: Sequence[Bound]) -> list[int]:
    return [state[bound.counting_group].room(bound.limit) for bound in bounds]


def _charge(state: dict[str, Counts], bounds: Sequence[Bound], requests: int, tokens: Estimate, now_ms: int) -> None:
    for bound in bounds:
        counts, kind = state[bound.counting_group], _kind(bound.limit)
        granule = granule_ms(bound.limit.unit, is_exact(bound.limit))
        if kind == _DAY_REQUESTS:
            counts = replace(counts, day_requests=counts.day_requests + requests)
        elif bound.limit.type is LimitType.REQUEST:
            counts = counts.with_log(kind, counts.log(kind).charged(requests, granule, now_ms))
        else:
            counts = counts.with_log(kind, counts.log(kind).charged(tokens.expected, granule, now_ms))
            counts = counts.with_margin(kind, counts.margin(kind).charged(tokens.margin, granule, now_ms))
        state[bound.counting_group] = counts


def _wait_ms(state: dict[str, Counts], bound: Bound, lease_ms: int, now_ms: int) -> int:
    """How long until this bound has room, if nothing else happens."""
    counts, kind, limit = state[bound.counting_group], _kind(bound.limit), bound.limit
    midnight = until_midnight_ms(now_ms)
    if kind == _DAY_REQUESTS:
        return midnight
    sums = [(counts.log(kind), limit.threshold)]
    if limit.type is LimitType.TOKEN:
        sums.append((counts.log(kind).merged(counts.margin(kind)), MOST_THRESHOLDS * limit.threshold))
    if kind != _DAY_TOKENS:
        return max(log.room_at_ms(most, window_ms(limit.unit, lease_ms)) - now_ms for log, most in sums)
    return max(_day_wait_ms(log, most, counts.day_tokens, lease_ms, now_ms) for log, most in sums)


def _day_wait_ms(reserved: RollingLog, most: int, settled: int, lease_ms: int, now_ms: int) -> int:
    """How long until reserved and settled tokens of the day are below `most`. The settled ones count until midnight."""
    after_midnight = max(until_midnight_ms(now_ms), reserved.room_at_ms(most, lease_ms) - now_ms)
    if settled >= most:
        return after_midnight
    return min(after_midnight, reserved.room_at_ms(most - settled, lease_ms) - now_ms)


def _counted_wait_ms(state: dict[str, Counts], bound: Bound, lease_ms: int, now_ms: int) -> int:
    """How long this bound has no room, token reservations not counted."""
    if bound.limit.type is LimitType.REQUEST:
        return _wait_ms(state, bound, lease_ms, now_ms)
    return _hard_wait_ms(state, bound, now_ms)


def _hard_wait_ms(state: dict[str, Counts], bound: Bound, now_ms: int) -> int:
    """How long nothing can lift this refusal. A request can be returned at any moment, settled DAY tokens cannot."""
    if _kind(bound.limit) == _DAY_TOKENS and state[bound.counting_group].day_tokens >= bound.limit.threshold:
        return until_midnight_ms(now_ms)
    return 0


def _tightest(
    state: dict[str, Counts], bounds: Sequence[Bound], rooms: Sequence[int], type: LimitType, now_ms: int
) -> Tightest | None:
    """The bound of `type` with the least room; the first one, if several have the same."""
    candidates = [index for index, bound in enumerate(bounds) if bound.limit.type is type]
    if not candidates:
        return None
    index = min(candidates, key=lambda candidate: rooms[candidate])
    bound = bounds[index]
    reset_ms = until_midnight_ms(now_ms)
    if bound.limit.is_rate:
        counts, window = state[bound.counting_group], window_ms(bound.limit.unit, 0)
        logs = counts.log(_kind(bound.limit)), counts.margin(_kind(bound.limit))
        reset_ms = max(0, *(log.empty_at_ms(window) - now_ms for log in logs))
    return Tightest(index, max(0, rooms[index]), reset_ms)


def _correct_requests(counts: Counts, mask: int, settlement: Settlement, now_ms: int) -> Counts:
    """Return the request of a call that was never dispatched; charge one that was admitted without Redis."""
    admitted_at = settlement.reservation.admitted_at_ms
    if not (settlement.given_back or settlement.reservation.local):
        return counts
    for kind in KINDS[:2]:
        number, log = KIND_NUMBER[kind], counts.log(kind)
        if not has_kind(mask, number):
            continue
        if settlement.given_back:
            counts = counts.with_log(kind, log.refunded(1, admitted_at))
        elif admitted_at + window_ms(kind[1], 0) >= now_ms:
            granule = granule_ms(kind[1], is_exact_kind(mask, number))
            counts = counts.with_log(kind, log.charged(1, granule, now_ms))
    if has_kind(mask, KIND_NUMBER[_DAY_REQUESTS]) and day_of(admitted_at) == counts.day:
        counts = replace(counts, day_requests=max(0, counts.day_requests + (-1 if settlement.given_back else 1)))
    return counts


def _correct_tokens(counts: Counts, mask: int, settlement: Settlement, now_ms: int) -> Counts:
    """Refund to the entries that hold the admission time, and to no other; charge an excess now."""
    reservation = settlement.reservation
    reserved = 0 if reservation.local else reservation.reserved_tokens
    margin = 0 if reservation.local else reservation.margin_tokens
    excess = settlement.actual_tokens - reserved
    for kind in KINDS[2:4]:
        number, log = KIND_NUMBER[kind], counts.log(kind)
        if not has_kind(mask, number):
            continue
        counts = counts.with_margin(kind, counts.margin(kind).refunded(margin, reservation.admitted_at_ms))
        if excess < 0:
            counts = counts.with_log(kind, log.refunded(-excess, reservation.admitted_at_ms))
        elif not reservation.local or reservation.admitted_at_ms + window_ms(kind[1], 0) >= now_ms:
            granule = granule_ms(kind[1], is_exact_kind(mask, number))
            counts = counts.with_log(kind, log.charged(excess, granule, now_ms))
    if has_kind(mask, KIND_NUMBER[_DAY_TOKENS]):
        admitted_at, margins = reservation.admitted_at_ms, counts.margin(_DAY_TOKENS)
        counts = counts.with_log(_DAY_TOKENS, counts.log(_DAY_TOKENS).refunded(reserved, admitted_at))
        counts = counts.with_margin(_DAY_TOKENS, margins.refunded(margin, admitted_at))
        counts = replace(counts, day_tokens=counts.day_tokens + settlement.actual_tokens)
    return counts
