"""Limits without Redis (mode `local`): this worker enforces its share of each threshold from memory.

It counts with `policy/limits/admission.py`, starting from what it admitted itself in the longest windows. Of a
REQUEST limit it takes no more than its share of what was left when Redis last replied. When Redis is back, the
settlements of calls admitted here charge it.

See docs/reference/limits.md#redis-loss.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from policy.limits.admission import Tightest, admit, charge, settle
from policy.limits.counter_hash import CounterHash
from policy.limits.counter_layout import kinds_of
from policy.limits.effective import Bound, Plan
from policy.limits.in_flight.places import NO_PLACES, HeldPlaces
from policy.limits.kinds import RATE_UNITS, USAGE_UNITS, Kind, Unit
from policy.limits.settlement import Estimate, Reservation, Settlement, reservations_of
from policy.limits.windows import until_end_ms, window_ms
from proxy.accounting.reservations import LimitHit, LimitStatus, Taken
from proxy.edges.redis.admission_requests import PlanPlace
from proxy.edges.redis.worker_roster import Share
from proxy.errors import CountersUnavailableError
from proxy.http_rules.headers import rate_limit_lines

_LONGEST_WINDOW_MS = max(window_ms(unit, 0) for unit in RATE_UNITS)
_SLICE_MS = 20
_PLANS_KEPT = 20_000
_NO_SHARE_RETRY_MS = 1000


class _Windows:
    """The calendar windows of a worker's clock: for each unit, the end of the present one and the number before it."""

    def __init__(self) -> None:
        self.numbers = dict.fromkeys(USAGE_UNITS, 0)
        self._ends_ms = dict.fromkeys(USAGE_UNITS, 0)
        self._next_end_ms = 0

    def follow(self, now_ms: int) -> None:
        if now_ms < self._next_end_ms:
            return
        for unit, end_ms in self._ends_ms.items():
            if now_ms >= end_ms:
                self.numbers[unit] += 1
                self._ends_ms[unit] = now_ms + until_end_ms(unit, now_ms)
        self._next_end_ms = min(self._ends_ms.values())


@dataclass(slots=True)
class _History:
    """Admitted calls of one (group, slug) in this worker: the longest rolling window in slices, and the requests of the
    calendar windows.

    `tightest`: the tightest REQUEST limit in Redis' last reply, to a call that was admitted or refused.
    `slices`: time, requests, expected tokens, expected output. `requests`: by unit, in which window, and how many.
    """

    plan: Plan
    tightest: LimitStatus | None = None
    replied_at_ms: int = 0
    slices: deque[list[int]] = field(default_factory=deque)
    requests: dict[Unit, list[int]] = field(default_factory=lambda: {unit: [0, 0] for unit in USAGE_UNITS})

    def add(self, now_ms: int, estimate: Estimate, windows: _Windows) -> None:
        if not self.slices or now_ms - self.slices[-1][0] >= _SLICE_MS:
            self.slices.append([now_ms, 0, 0, 0])
            while self.slices[0][0] < now_ms - _LONGEST_WINDOW_MS:
                self.slices.popleft()
        newest = self.slices[-1]
        newest[1] += 1
        newest[2] += estimate.expected
        newest[3] += estimate.output
        windows.follow(now_ms)
        for unit, number in windows.numbers.items():
            counted = self.requests[unit]
            if counted[0] != number:
                counted[:] = number, 0
            counted[1] += 1

    def requests_in(self, unit: Unit, windows: _Windows) -> int:
        """The number of requests in the present calendar window."""
        number, requests = self.requests[unit]
        return requests if number == windows.numbers[unit] else 0


class LocalLimits:
    """One worker's memory. `share`: its last known share, None before that. `clock_ms`: a clock without steps.

    `in_flight`: this worker's calls in flight, by key and group, whoever has admitted them.
    """

    def __init__(
        self,
        lease_ms: int,
        share: Callable[[], Share | None],
        clock_ms: Callable[[], int],
        in_flight: Callable[[str, str], int],
    ) -> None:
        self._lease_ms = lease_ms
        self._share = share
        self._clock_ms = clock_ms
        self._in_flight = in_flight
        self._histories: dict[tuple[str, str], _History] = {}
        self._sweep_at = _PLANS_KEPT
        self._windows = _Windows()
        self._settled: dict[tuple[str, str, Kind], list[int]] = {}
        """The tokens settled of usage limits, by key, group and kind: in which window, and how many."""
        self._hashes: dict[str, CounterHash] = {}
        self._number = 0

    def record_admission(self, plan: Plan, estimate: Estimate, requests: LimitStatus | None = None) -> None:
        """Count an admitted call of this worker. `requests`: the tightest REQUEST limit in Redis' reply."""
        history = self._history(plan)
        now_ms = self._clock_ms()
        if requests is not None:
            history.tightest = requests
            history.replied_at_ms = now_ms
        history.add(now_ms, estimate, self._windows)

    def record_refusal(self, plan: Plan, requests: LimitStatus | None) -> None:
        """Note the limits of Redis' reply to a refused call of this worker."""
        history = self._history(plan)
        history.tightest = requests
        history.replied_at_ms = self._clock_ms()

    def record_settlement(self, reservation: Reservation, actual_tokens: int, given_back: bool = False) -> None:
        """Count the tokens of a call that has ended, whether Redis or this worker admitted it."""
        self._follow()
        for group, mask in reservation.buckets:
            for type, unit in kinds_of(mask):
                if type.parts is not None and not unit.is_rolling:
                    self._add_settled((reservation.key, group, (type, unit)), actual_tokens)
        counters = self._hashes.get(reservation.key)
        if counters is not None:
            self._number += 1
            margin = reservation.margin_tokens if reservation.local else 0  # Redis counted it, and not this worker
            here = Settlement(
                reservation=reservation._replace(local=False, margin_tokens=margin),
                number=self._number,
                actual_tokens=actual_tokens,
                given_back=given_back,
            )
            settle(counters, "local", (here,), self._clock_ms())

    def redis_is_back(self, counts: Callable[[str], bool]) -> None:
        """Leave these keys to Redis, which counts them again. The next loss starts from the histories of that time."""
        self._hashes = {key: counters for key, counters in self._hashes.items() if not counts(key)}
        self._drop_idle()

    def _history(self, plan: Plan) -> _History:
        pair = (plan.group_id, plan.slug)
        history = self._histories.get(pair)
        if history is None:
            if len(self._histories) >= self._sweep_at:
                self._drop_idle()
            history = self._histories[pair] = _History(plan)
        if history.plan is not plan:  # policy has changed, or the directory had dropped the plan
            history.plan = plan
            history.tightest = None
        return history

    def _drop_idle(self) -> None:
        oldest_ms = self._clock_ms() - _LONGEST_WINDOW_MS
        self._follow()
        histories = {
            pair: one
            for pair, one in self._histories.items()
            if any(one.requests_in(unit, self._windows) for unit in _units_of(one.plan))
            or one.replied_at_ms >= oldest_ms
            or (one.slices and one.slices[-1][0] >= oldest_ms)
        }
        self._histories = histories
        self._sweep_at = max(_PLANS_KEPT, 2 * len(histories))

    def take(self, plan: Plan, estimate: Estimate, place: PlanPlace | None = None) -> Taken | LimitHit:
        """Admit against this worker's share. Raises `CountersUnavailableError` if it has never known one.

        `place`: that of the plan's calls, if a limit of calls in flight binds.
        """
        share = self._share()
        if share is None:
            raise CountersUnavailableError
        bounds = [replace(b, limit=replace(b.limit, threshold=share.of(b.limit.threshold))) for b in plan.bounds]
        without_share = next((b for b, own in zip(plan.bounds, bounds, strict=True) if own.limit.threshold == 0), None)
        if without_share is not None:
            return LimitHit(without_share, _NO_SHARE_RETRY_MS)
        counters = self._hash(plan.key, share)
        now_ms = self._clock_ms()
        for group in () if place is None else place.groups:
            own_places = HeldPlaces(calls=self._in_flight(plan.key, group))
            counters.places[group] = NO_PLACES.at(now_ms).with_entry("", own_places)
        decision = admit(counters, bounds, (estimate,), now_ms)
        requests = _status(plan, decision.requests)
        tokens = _status(plan, decision.tokens)
        if decision.refused_by is not None:
            waits = decision.retry_after_ms, decision.counted_retry_after_ms, decision.hard_retry_after_ms
            return LimitHit(plan.bounds[decision.refused_by], waits[0], requests, tokens, waits[1], waits[2])
        self.record_admission(plan, estimate)
        own = reservations_of(plan.key, _buckets(plan), decision.now_ms, estimate, local=True)
        return Taken(own, own, rate_limit_lines(requests, tokens), lambda: (requests, tokens), place)

    def _hash(self, key: str, share: Share) -> CounterHash:
        counters = self._hashes.get(key)
        if counters is None:
            counters = self._hashes[key] = self._hash_from_histories(key, share)
        return counters

    def _hash_from_histories(self, key: str, share: Share) -> CounterHash:
        """Make counters of this worker's own last window, and of what it knows of the other workers' calls."""
        counters = CounterHash(self._lease_ms)
        now_ms = self._clock_ms()
        own = [history for history in self._histories.values() if history.plan.key == key]
        slices = [(figures, one.plan) for one in own for figures in one.slices]
        for (at_ms, requests, tokens, output), plan in sorted(slices, key=lambda one: one[0][0]):
            rates = [bound for bound in plan.bounds if bound.limit.is_rate]
            charge(counters, rates, requests, Estimate(tokens, output=output), at_ms)
        replies = [(one, one.tightest, one.plan.bounds[one.tightest.bound]) for one in own if one.tightest is not None]
        for history, tightest, bound in replies:
            if bound.limit.is_rate:  # before usage limits, which advance the time of the counters
                self._charge_others(counters, history, tightest, share)
        self._follow()
        for history in own:
            for bound in history.plan.bounds:
                if not bound.limit.is_rate:
                    self._charge_usage(counters, history, bound, now_ms)
        for history, tightest, bound in replies:
            if not bound.limit.is_rate:
                self._charge_others(counters, history, tightest, share)
        return counters

    def _charge_others(self, counters: CounterHash, history: _History, tightest: LimitStatus, share: Share) -> None:
        """Charge what other workers had used, so that no more room is left than this worker's share of what Redis last
        reported as remaining. Nothing to charge once that usage has left the window."""
        bound = history.plan.bounds[tightest.bound]
        now_ms = self._clock_ms()
        if history.replied_at_ms + tightest.reset_ms <= now_ms:
            return
        counts = counters.counts_at(bound.counting_group, now_ms)
        room = share.of(bound.limit.threshold) - counts.used((bound.limit.type, bound.limit.unit))
        used_by_others = room - share.of(tightest.remaining)
        if used_by_others > 0:
            at_ms = now_ms
            if bound.limit.is_rate:  # never before what was charged already: that would be a step back
                newest_ms = history.replied_at_ms + tightest.reset_ms - window_ms(bound.limit.unit, 0) - 1
                at_ms = max(newest_ms, counters.last_ms(bound.counting_group))
            charge(counters, (bound,), used_by_others, Estimate(0), at_ms)

    def _charge_usage(self, counters: CounterHash, history: _History, bound: Bound, now_ms: int) -> None:
        kind = bound.limit.type, bound.limit.unit
        counts = counters.counts_at(bound.counting_group, now_ms)
        if bound.limit.type.parts is None:
            by = history.requests_in(bound.limit.unit, self._windows)
        else:  # settled by the calls of all histories that share the bucket
            _, settled = self._settled.get((history.plan.key, bound.counting_group, kind), (0, 0))
            by = settled - counts.count(kind)
        counters.groups[bound.counting_group] = counts.with_count(kind, by)

    def _add_settled(self, place: tuple[str, str, Kind], tokens: int) -> None:
        number = self._windows.numbers[place[2][1]]
        counted = self._settled.setdefault(place, [number, 0])
        if counted[0] != number:
            counted[:] = number, 0
        counted[1] += tokens

    def _follow(self) -> None:
        """Drop the counts of calendar windows that have ended."""
        before = dict(self._windows.numbers)
        self._windows.follow(self._clock_ms())
        if before != self._windows.numbers:
            numbers = self._windows.numbers
            self._settled = {place: one for place, one in self._settled.items() if one[0] == numbers[place[2][1]]}


def _units_of(plan: Plan) -> set[Unit]:
    """The units of the plan's usage limits."""
    return {limit.unit for own in plan.limits for limit in own.limits if not limit.is_rate}


def _status(plan: Plan, tightest: Tightest | None) -> LimitStatus | None:
    if tightest is None:
        return None
    return LimitStatus(plan.bounds[tightest.bound].limit.threshold, tightest.remaining, tightest.reset_ms)


def _buckets(plan: Plan) -> tuple[tuple[str, int], ...]:
    """All buckets, those of REQUEST limits too: Redis has not counted the request yet."""
    return tuple((group, own.mask) for group, own in zip(plan.groups, plan.limits, strict=True))
