"""The rules of admission and settlement in plain Python: the reference for take.lua, settle.lua and revoke.lua.

Pure: no I/O, no clock. Property tests compare it with the scripts. It also decides for a worker that has lost Redis
(`local` mode), and stands in for Redis in unit tests.

See docs/reference/limits.md#admission.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policy.limits.counter_hash import MOST_THRESHOLDS, CounterHash, Counts
from policy.limits.counter_layout import kinds_of
from policy.limits.effective import Bound
from policy.limits.in_flight.places import RETRY_MS, Places
from policy.limits.kinds import Kind, LimitType, Unit
from policy.limits.limit import Limit
from policy.limits.settlement import Estimate, Settlement
from policy.limits.take_numbers import TakeLog, TakeRecord, TakeStamp
from policy.limits.windows import RollingLog, granule_ms, is_exact, until_end_ms, window_ms


@dataclass(frozen=True, slots=True)
class Tightest:
    """The limit of one type with the least room. `bound`: its index. `reset_ms`: until nothing counts there."""

    bound: int
    remaining: int
    reset_ms: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The number of requests that were admitted, in order, and the index of the bound that refused the rest.

    `now_ms`: the time of the groups, which is ahead of `clock_ms` once the clock has stepped back; 0 if too late.
    `retry_after_ms`: until a request would be admitted if nothing else happened. `counted_retry_after_ms`: the same,
    if all token reservations were settled at zero now. `hard_retry_after_ms`: until then nothing can admit a request;
    0 means that a settlement or a returned reservation may lift the refusal at any moment.
    """

    clock_ms: int
    admitted: int
    refused_by: int | None
    now_ms: int = 0
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

    A limit of tokens admits while used + expected is below its threshold, and used + expected + margin below twice
    that, whatever the call's own estimate, so a first call is never refused. Refused requests and late takes count
    nothing.
    """
    if stamp is not None and counters.takes.get(stamp.incarnation, TakeLog()).refuses(stamp, clock_ms):
        return Decision(clock_ms, 0, None)
    state = _state(counters, bounds, clock_ms)
    now_ms = state[bounds[0].counting_group].last_ms
    in_flight = _InFlight(counters, bounds, clock_ms, "" if stamp is None else stamp.incarnation)
    admitted = 0
    for estimate in estimates:
        if min(_rooms(state, in_flight, bounds, admitted)) < 1:
            break
        admitted += 1
        _charge(state, bounds, 1, estimate)
    has_stepped = counters.steps(state) or in_flight.has_stepped
    if admitted or has_stepped:  # a group whose limits are full must not wait for the clock to catch up
        counters.groups.update(state)
        counters.places.update(in_flight.after(stamp, admitted))
    if admitted and stamp is not None:
        log = counters.takes.get(stamp.incarnation, TakeLog())
        counters.takes[stamp.incarnation] = log.with_take(stamp, now_ms, admitted)
    rooms = _rooms(state, in_flight, bounds, admitted)
    refused_by = None
    if admitted < len(estimates):
        refused_by = next(index for index, room in enumerate(rooms) if room < 1)
    refusing = [bound for bound, room in zip(bounds, rooms, strict=True) if refused_by is not None and room < 1]
    moment = _Moment(clock_ms, now_ms, counters.lease_ms)
    return Decision(
        clock_ms=clock_ms,
        admitted=admitted,
        refused_by=refused_by,
        now_ms=now_ms,
        retry_after_ms=max((_wait_ms(state, bound, moment) for bound in refusing), default=0),
        counted_retry_after_ms=max((_counted_wait_ms(state, bound, moment) for bound in refusing), default=0),
        hard_retry_after_ms=max((_hard_wait_ms(state, bound, moment) for bound in refusing), default=0),
        requests=_tightest(state, bounds, rooms, LimitType.REQUEST, moment),
        tokens=_tightest(state, bounds, rooms, LimitType.TOKEN, moment),
    )


def charge(counters: CounterHash, bounds: Sequence[Bound], requests: int, tokens: Estimate, clock_ms: int) -> None:
    """Count calls that were admitted elsewhere."""
    state = _state(counters, bounds, clock_ms)
    _charge(state, bounds, requests, tokens)
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
    state = {group: counters.counts_at(group, clock_ms) for group in groups}
    new = 0
    for settlement in settlements:
        if settlement.number <= counters.applied.get(incarnation, 0):
            continue
        new += 1
        counters.applied[incarnation] = settlement.number
        for group, mask in settlement.reservation.buckets:
            counts = _correct_requests(state[group], mask, settlement, clock_ms)
            state[group] = _correct_tokens(counts, mask, settlement, clock_ms)
    if new:
        counters.groups.update(state)
    return new


@dataclass(frozen=True, slots=True)
class _Moment:
    """The moment of a take: what the clock shows, and the time of its groups."""

    clock_ms: int
    now_ms: int
    lease_ms: int

    def until_end_ms(self, unit: Unit) -> int:
        """The time until the clock's day or month ends."""
        return until_end_ms(unit, self.clock_ms)


def _state(counters: CounterHash, bounds: Sequence[Bound], clock_ms: int) -> dict[str, Counts]:
    """The counters of all groups at one time: that of the group which is most ahead of the clock."""
    groups = dict.fromkeys(bound.counting_group for bound in bounds)
    ahead_ms = counters.ahead_ms(groups, clock_ms)
    return {group: counters.counts_at(group, clock_ms, ahead_ms) for group in groups}


def _kind(limit: Limit) -> Kind:
    return limit.type, limit.unit


class _InFlight:
    """The places that a take finds, of each group that limits its calls in flight."""

    def __init__(self, counters: CounterHash, bounds: Sequence[Bound], clock_ms: int, incarnation: str) -> None:
        groups = dict.fromkeys(bound.counting_group for bound in bounds if bound.limit.type.is_concurrent)
        self._places = {group: counters.places_at(group, clock_ms) for group in groups}
        self._incarnation = incarnation
        before = (counters.places.get(group, Places()).ahead_ms for group in groups)
        self.has_stepped = any(
            one.ahead_ms != ahead_ms for one, ahead_ms in zip(self._places.values(), before, strict=True)
        )

    def used(self, group: str) -> int:
        return self._places[group].used(self._incarnation)

    def after(self, stamp: TakeStamp | None, admitted: int) -> Mapping[str, Places]:
        """The places after the take. One without a stamp takes none: whoever decides alone knows its own."""
        if stamp is None or not admitted:
            return self._places
        its_take = (stamp.number, stamp.answered_through, admitted)
        return {
            group: one.with_entry(stamp.incarnation, one.entry(stamp.incarnation).with_take(*its_take))
            for group, one in self._places.items()
        }


def _rooms(state: Mapping[str, Counts], in_flight: _InFlight, bounds: Sequence[Bound], admitted: int) -> list[int]:
    """The room of each bound. The calls that the take has admitted so far count in `state`, and not in `in_flight`."""
    return [
        bound.limit.threshold - in_flight.used(bound.counting_group) - admitted
        if bound.limit.type.is_concurrent
        else state[bound.counting_group].room(bound.limit)
        for bound in bounds
    ]


def _charge(state: dict[str, Counts], bounds: Sequence[Bound], requests: int, tokens: Estimate) -> None:
    for bound in bounds:
        counts = state[bound.counting_group]
        kind = _kind(bound.limit)
        now_ms = counts.last_ms
        granule = granule_ms(bound.limit.unit, is_exact(bound.limit))
        if bound.limit.type.is_concurrent:
            continue
        if not _has_log(kind):
            counts = counts.with_count(kind, requests)
        elif bound.limit.type.parts is None:
            counts = counts.with_log(kind, counts.log(kind).charged(requests, granule, now_ms))
        else:
            expected, margin = tokens.of(bound.limit.type)
            counts = counts.with_log(kind, counts.log(kind).charged(expected, granule, now_ms))
            counts = counts.with_margin(kind, counts.margin(kind).charged(margin, granule, now_ms))
        state[bound.counting_group] = counts


def _has_log(kind: Kind) -> bool:
    """Return whether a log counts the kind. A calendar window counts requests in a number, and tokens once settled."""
    return kind[1].is_rolling or kind[0].parts is not None


def _wait_ms(state: dict[str, Counts], bound: Bound, moment: _Moment) -> int:
    """The time in ms until this bound has room, if nothing else happens."""
    counts = state[bound.counting_group]
    kind = _kind(bound.limit)
    limit = bound.limit
    if limit.type.is_concurrent:
        return RETRY_MS
    if not _has_log(kind):
        return moment.until_end_ms(limit.unit)
    sums = [(counts.log(kind), limit.threshold)]
    if limit.type.parts is not None:
        sums.append((counts.log(kind).merged(counts.margin(kind)), MOST_THRESHOLDS * limit.threshold))
    if limit.is_rate:
        window = window_ms(limit.unit, moment.lease_ms)
        return max(log.room_at_ms(most, window) - moment.now_ms for log, most in sums)
    end_ms = moment.until_end_ms(limit.unit)
    return max(_calendar_wait_ms(log, most, counts.count(kind), end_ms, moment) for log, most in sums)


def _calendar_wait_ms(reserved: RollingLog, most: int, settled: int, end_ms: int, moment: _Moment) -> int:
    """The time until reserved and settled tokens are below `most`. The settled ones count until the window ends."""
    after_end = max(end_ms, reserved.room_at_ms(most, moment.lease_ms) - moment.now_ms)
    if settled >= most:
        return after_end
    return min(after_end, reserved.room_at_ms(most - settled, moment.lease_ms) - moment.now_ms)


def _counted_wait_ms(state: dict[str, Counts], bound: Bound, moment: _Moment) -> int:
    """The time in ms until this bound has room, if token reservations do not count."""
    if bound.limit.type.parts is None:
        return _wait_ms(state, bound, moment)
    return _hard_wait_ms(state, bound, moment)


def _hard_wait_ms(state: dict[str, Counts], bound: Bound, moment: _Moment) -> int:
    """The time in which nothing lifts this refusal. A request can return at any moment, a usage limit's settled tokens
    cannot."""
    kind = _kind(bound.limit)
    limit = bound.limit
    is_settled = not limit.is_rate and limit.type.parts is not None
    if is_settled and state[bound.counting_group].count(kind) >= limit.threshold:
        return moment.until_end_ms(limit.unit)
    return 0


def _tightest(
    state: dict[str, Counts], bounds: Sequence[Bound], rooms: Sequence[int], type: LimitType, moment: _Moment
) -> Tightest | None:
    """The bound of `type` with the least room; the first one, if several have the same."""
    candidates = [index for index, bound in enumerate(bounds) if bound.limit.type is type]
    if not candidates:
        return None
    index = min(candidates, key=lambda candidate: rooms[candidate])
    bound = bounds[index]
    if not bound.limit.is_rate:
        reset_ms = moment.until_end_ms(bound.limit.unit)
    else:
        counts = state[bound.counting_group]
        window = window_ms(bound.limit.unit, 0)
        logs = counts.log(_kind(bound.limit)), counts.margin(_kind(bound.limit))
        reset_ms = max(0, *(log.empty_at_ms(window) - moment.now_ms for log in logs))
    return Tightest(index, max(0, rooms[index]), reset_ms)


def _correct_requests(counts: Counts, mask: int, settlement: Settlement, clock_ms: int) -> Counts:
    """Return the request of a call that was never dispatched; charge one that was admitted without Redis.

    The time of an admission without Redis is a machine's, to compare with the clock.
    """
    admitted_at = settlement.reservation.admitted_at_ms
    if not (settlement.given_back or settlement.reservation.local):
        return counts
    for kind, exact in kinds_of(mask).items():
        type, unit = kind
        if type.parts is not None:
            continue
        if settlement.given_back and unit.is_rolling:
            counts = counts.refunded(kind, 1, admitted_at)
        elif settlement.given_back:
            counts = counts.with_count(kind, -1) if counts.counted_now(kind, admitted_at) else counts
        elif not unit.is_rolling:
            counts = counts.with_count(kind, 1) if counts.is_present(kind, admitted_at) else counts
        elif admitted_at + window_ms(unit, 0) >= clock_ms:
            counts = _with_charge(counts, kind, exact, 1)
    return counts


def _correct_tokens(counts: Counts, mask: int, settlement: Settlement, clock_ms: int) -> Counts:
    """Refund to the entries that hold the admission time, and to no other; charge an excess now."""
    reservation = settlement.reservation
    admitted_at = reservation.admitted_at_ms
    reserved = 0 if reservation.local else reservation.reserved_tokens
    margin = 0 if reservation.local else reservation.margin_tokens
    excess = settlement.actual_tokens - reserved
    for kind, exact in kinds_of(mask).items():
        type, unit = kind
        if type.parts is None:
            continue
        counts = counts.margin_refunded(kind, margin, admitted_at)
        if not unit.is_rolling:
            counts = counts.refunded(kind, reserved, admitted_at).with_count(kind, settlement.actual_tokens)
        elif excess < 0:
            counts = counts.refunded(kind, -excess, admitted_at)
        elif not reservation.local or admitted_at + window_ms(unit, 0) >= clock_ms:
            counts = _with_charge(counts, kind, exact, excess)
    return counts


def _with_charge(counts: Counts, kind: Kind, exact: bool, count: int) -> Counts:
    """Count events that were not reserved, now."""
    granule = granule_ms(kind[1], exact)
    return counts.with_log(kind, counts.log(kind).charged(count, granule, counts.last_ms))
