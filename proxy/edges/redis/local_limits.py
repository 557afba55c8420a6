"""Limits without Redis, where the operator has chosen `local`: this worker enforces its share, from memory.

The rolling log is the same one (`policy/limits/admission.py`), charged with what this worker itself admitted in the
last minute and day, and with what the others had used of a REQUEST limit when Redis last told: of what was left then,
this worker takes its share. What is admitted here is told to Redis when it is back, by the settlements.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from policy.limits.admission import CounterHash, Counts, Tightest, admit, charge, settle
from policy.limits.counter_layout import KIND_NUMBER, has_kind, kind_mask
from policy.limits.effective import Bound, Plan
from policy.limits.limit import LimitType, Unit
from policy.limits.settlement import Reservation, Settlement
from policy.limits.windows import day_of, window_ms
from proxy.accounting.reservations import LimitHit, LimitStatus, Taken
from proxy.edges.redis.worker_roster import Share
from proxy.exchange import CountersUnavailableError

_LONGEST_RATE_MS = 60_000
_MERGED_MS = 20
_PLANS_KEPT = 20_000
_NO_SHARE_RETRY_MS = 1000
_DAY_TOKENS = KIND_NUMBER[LimitType.TOKEN, Unit.DAY]


@dataclass(slots=True)
class _Admitted:
    """What this worker has admitted of one (group, slug): the last minute in slices, and the day's requests.

    `told`: the tightest REQUEST limit as Redis last told it, to a call that was admitted or refused.
    """

    plan: Plan
    told: LimitStatus | None = None
    told_at_ms: int = 0
    slices: deque[list[int]] = field(default_factory=deque)
    day: int = 0
    day_requests: int = 0

    def add(self, now_ms: int, tokens: int) -> None:
        if self.slices and now_ms - self.slices[-1][0] < _MERGED_MS:
            self.slices[-1][1] += 1
            self.slices[-1][2] += tokens
        else:
            self.slices.append([now_ms, 1, tokens])
            while self.slices[0][0] < now_ms - _LONGEST_RATE_MS:
                self.slices.popleft()
        if self.day != day_of(now_ms):
            self.day, self.day_requests = day_of(now_ms), 0
        self.day_requests += 1


class LocalLimits:
    """One worker's memory. `share`: the last known one, None while none is known; `clock_ms`: the wall clock."""

    def __init__(self, lease_ms: int, share: Callable[[], Share | None], clock_ms: Callable[[], int]) -> None:
        self._lease_ms = lease_ms
        self._share = share
        self._clock_ms = clock_ms
        self._admitted: dict[tuple[str, str], _Admitted] = {}
        self._sweep_at = _PLANS_KEPT
        self._day_tokens: dict[tuple[str, str], int] = {}
        self._day = 0
        self._books: dict[str, CounterHash] = {}
        self._number = 0

    def saw(self, plan: Plan, tokens: int, requests: LimitStatus | None = None) -> None:
        """A call of this worker was admitted; `requests`: what Redis told of the tightest REQUEST limit."""
        admitted = self._at(plan)
        now_ms = self._clock_ms()
        if requests is not None:
            admitted.told, admitted.told_at_ms = requests, now_ms
        admitted.add(now_ms, tokens)

    def told(self, plan: Plan, requests: LimitStatus | None) -> None:
        """Redis has refused a call of this worker."""
        admitted = self._at(plan)
        admitted.told, admitted.told_at_ms = requests, self._clock_ms()

    def _at(self, plan: Plan) -> _Admitted:
        place = (plan.group_id, plan.slug)
        admitted = self._admitted.get(place)
        if admitted is None:
            if len(self._admitted) >= self._sweep_at:
                self._drop_idle()
            admitted = self._admitted[place] = _Admitted(plan)
        if admitted.plan is not plan:  # the directory makes it anew when policy has changed, or when it met many others
            admitted.plan, admitted.told = plan, None
        return admitted

    def settled(self, settlement: Settlement) -> None:
        """A call has ended, wherever it was admitted."""
        reservation = settlement.reservation
        self._roll_day()
        for group, parts in reservation.buckets:
            if has_kind(parts, _DAY_TOKENS):
                pair = (reservation.key, group)
                self._day_tokens[pair] = self._day_tokens.get(pair, 0) + settlement.actual_tokens
        book = self._books.get(reservation.key)
        if book is not None:
            self._number += 1
            here = settlement._replace(reservation=reservation._replace(local=False), number=self._number)
            settle(book, "local", (here,), self._clock_ms())

    def redis_is_back(self) -> None:
        """What was counted here is Redis' business again; the next loss begins with what is known then."""
        self._books.clear()
        self._drop_idle()

    def _drop_idle(self) -> None:
        oldest_ms = self._clock_ms() - _LONGEST_RATE_MS
        today = day_of(self._clock_ms())
        kept = {
            place: one
            for place, one in self._admitted.items()
            if one.day == today or one.told_at_ms >= oldest_ms or (one.slices and one.slices[-1][0] >= oldest_ms)
        }
        self._admitted = kept
        self._sweep_at = max(_PLANS_KEPT, 2 * len(kept))

    def take(self, plan: Plan, estimate: int) -> Taken | LimitHit:
        """Admit against this worker's share. `CountersUnavailableError` when it never knew one."""
        share = self._share()
        if share is None:
            raise CountersUnavailableError
        bounds = [replace(b, limit=replace(b.limit, threshold=share.of(b.limit.threshold))) for b in plan.bounds]
        empty = next((b for b, mine in zip(plan.bounds, bounds, strict=True) if mine.limit.threshold == 0), None)
        if empty is not None:
            return LimitHit(empty, _NO_SHARE_RETRY_MS)
        decision = admit(self._book(plan.key, share), bounds, (estimate,), self._clock_ms())
        requests, tokens = _status(plan, decision.requests), _status(plan, decision.tokens)
        if decision.refused_by is not None:
            waits = decision.retry_after_ms, decision.counted_retry_after_ms, decision.hard_retry_after_ms
            return LimitHit(plan.bounds[decision.refused_by], waits[0], requests, tokens, waits[1], waits[2])
        self.saw(plan, estimate)
        taken = (
            Reservation(
                key=plan.key, buckets=_parts(plan), admitted_at_ms=decision.now_ms, reserved_tokens=estimate, local=True
            ),
        )
        return Taken(taken, requests, tokens, taken)

    def _book(self, key: str, share: Share) -> CounterHash:
        book = self._books.get(key)
        if book is None:
            book = self._books[key] = self._remembered(key, share)
        return book

    def _remembered(self, key: str, share: Share) -> CounterHash:
        """A book charged with this worker's own last window, and with what it knows of the others'."""
        book, now_ms = CounterHash(self._lease_ms), self._clock_ms()
        mine = [admitted for admitted in self._admitted.values() if admitted.plan.key == key]
        slices = [(at_ms, requests, tokens, one.plan) for one in mine for at_ms, requests, tokens in one.slices]
        for at_ms, requests, tokens, plan in sorted(slices, key=lambda piece: piece[0]):
            rates = [bound for bound in plan.bounds if bound.limit.is_rate]
            charge(book, rates, requests, tokens, at_ms)
        told = [(one, one.told, one.plan.bounds[one.told.bound]) for one in mine if one.told is not None]
        for admitted, standing, bound in told:
            if bound.limit.is_rate:  # before the days, which move the book's time
                self._remember_others(book, admitted, standing, share)
        self._roll_day()
        for admitted in mine:
            for bound in admitted.plan.bounds:
                if bound.limit.unit is Unit.DAY:
                    self._remember_day(book, admitted, bound, now_ms)
        for admitted, standing, bound in told:
            if not bound.limit.is_rate:
                self._remember_others(book, admitted, standing, share)
        return book

    def _remember_others(self, book: CounterHash, admitted: _Admitted, told: LimitStatus, share: Share) -> None:
        """Leave no more room than this worker's share of what was left when Redis told, for as long as that stands."""
        bound, now_ms = admitted.plan.bounds[told.bound], self._clock_ms()
        if admitted.told_at_ms + told.reset_ms <= now_ms:
            return
        counts = book.counts_at(bound.counting_group, now_ms)
        room = share.of(bound.limit.threshold) - counts.used((bound.limit.type, bound.limit.unit))
        used_by_others = room - share.of(told.remaining)
        if used_by_others > 0:
            newest_ms = admitted.told_at_ms + told.reset_ms - window_ms(bound.limit.unit, 0) - 1
            charge(book, (bound,), used_by_others, 0, now_ms if bound.limit.unit is Unit.DAY else newest_ms)

    def _remember_day(self, book: CounterHash, admitted: _Admitted, bound: Bound, now_ms: int) -> None:
        counts: Counts = book.counts_at(bound.counting_group, now_ms)
        if bound.limit.type is LimitType.TOKEN:
            settled = self._day_tokens.get((admitted.plan.key, bound.counting_group), 0)
            counts = replace(counts, day_tokens=settled)
        elif admitted.day == counts.day:
            counts = replace(counts, day_requests=counts.day_requests + admitted.day_requests)
        book.groups[bound.counting_group] = counts

    def _roll_day(self) -> None:
        today = day_of(self._clock_ms())
        if today != self._day:
            self._day = today
            self._day_tokens.clear()


def _status(plan: Plan, tightest: Tightest | None) -> LimitStatus | None:
    if tightest is None:
        return None
    return LimitStatus(plan.bounds[tightest.bound].limit.threshold, tightest.remaining, tightest.reset_ms)


def _parts(plan: Plan) -> tuple[tuple[str, int], ...]:
    """All that binds, requests too: Redis has yet to be told of them."""
    groups = dict.fromkeys(bound.counting_group for bound in plan.bounds)
    return tuple((group, kind_mask(b.limit for b in plan.bounds if b.counting_group == group)) for group in groups)
