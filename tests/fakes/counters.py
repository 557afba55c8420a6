"""The counters in memory, on `policy/limits/admission.py`: passes the same contract suite as the real ones."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial, reduce
from itertools import count

from policy.limits.admission import Decision, Tightest, admit, settle
from policy.limits.counter_hash import CounterHash
from policy.limits.counter_layout import kind_mask
from policy.limits.effective import Bound, Plan
from policy.limits.in_flight.places import NO_PLACES, HeldPlaces
from policy.limits.kinds import LimitType
from policy.limits.settlement import Estimate, Reservation, Settlement, reservations_of
from policy.limits.windows import lease_ms
from proxy.accounting.reservations import LimitHit, LimitStatus, Place, Places, Taken, closed_hit
from proxy.edges.redis.admission_requests import PlanPlace
from proxy.errors import CountersUnavailableError
from proxy.http_rules.headers import rate_limit_lines


class FakeCounters:
    """`now_ms`: the clock; `away`: behave as if Redis were unreachable. Settlements apply at once."""

    def __init__(self, now_ms: Callable[[], int], *, request_timeout_s: float = 1200) -> None:
        self.away = False
        self.books: dict[str, CounterHash] = {}
        self.settled: list[Settlement] = []
        self.in_flight = Counter[tuple[str, str]]()
        """The calls in flight, by key and group."""
        self._now_ms = now_ms
        self._lease_ms = lease_ms(request_timeout_s)
        self.numbers: Iterator[int] = count(1)

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def ask(self, plan: Plan, estimate: Estimate, further: Sequence[Plan] = ()) -> Awaitable[Taken | LimitHit]:
        return self.take(plan, estimate, further)

    def abandon(self, question: Awaitable[Taken | LimitHit]) -> None:
        """A take here takes no time, so it is never cancelled."""

    async def take(self, plan: Plan, estimate: Estimate, further: Sequence[Plan] = ()) -> Taken | LimitHit:
        if not further:
            return self._take(plan, estimate)
        takes: list[Taken] = []
        for each in (*further, plan):
            answer = self._take(each, estimate)
            if isinstance(answer, LimitHit):
                for take in takes:
                    self._return(take)
                return answer
            takes.append(answer)
        places = [take.place for take in takes if take.place is not None]
        return _taken(
            sum((take.reservations for take in takes), ()),
            sum((take.returnable for take in takes), ()),
            reduce(_tighter, [take.requests for take in takes]),
            reduce(_tighter, [take.tokens for take in takes]),
            Places(places) if places else None,
        )

    def settle(self, reservation: Reservation, *, number: int, actual_tokens: int) -> None:
        settlement = Settlement(reservation=reservation, number=number, actual_tokens=actual_tokens)
        self.settled.append(settlement)
        self._apply("this worker", settlement)

    def give_back(self, take: Taken) -> None:
        self.settled += self._return(take)

    def _return(self, take: Taken) -> list[Settlement]:
        settlements = [
            Settlement(reservation=reservation, number=next(self.numbers), actual_tokens=0, given_back=True)
            for reservation in take.returnable
        ]
        for settlement in settlements:
            self._apply("given back", settlement)
        if take.place is not None:
            take.place.release()
        return settlements

    async def replay(self, incarnation: str, settlements: Sequence[Settlement]) -> None:
        if self.away:
            raise CountersUnavailableError
        for settlement in sorted(settlements, key=lambda one: one.number):
            self._apply(incarnation, settlement)

    def _take(self, plan: Plan, estimate: Estimate) -> Taken | LimitHit:
        if not plan.bounds:
            return Taken()
        if (closed := closed_hit(plan)) is not None:
            return closed
        if self.away:
            raise CountersUnavailableError
        book = self._book(plan.key)
        limited = [bound.counting_group for bound in plan.bounds if bound.limit.type.is_concurrent]
        for group in limited:
            its_places = HeldPlaces(calls=self.in_flight[plan.key, group])
            book.places[group] = NO_PLACES.at(self._now_ms()).with_entry("", its_places)
        decision = admit(book, plan.bounds, (estimate,), self._now_ms())
        requests = _status(plan, decision.requests)
        tokens = _status(plan, decision.tokens)
        if decision.refused_by is not None:
            waits = decision.retry_after_ms, decision.counted_retry_after_ms, decision.hard_retry_after_ms
            return LimitHit(plan.bounds[decision.refused_by], waits[0], requests, tokens, waits[1], waits[2])
        reservations = _reservations(plan, plan.bounds, decision, estimate)
        bounds = [bound for bound in plan.bounds if _is_settled(plan, bound)]
        place = PlanPlace(plan.key, limited, partial(self._count_place, -1)) if limited else None
        if place is not None:
            self._count_place(1, place)
        return _taken(_reservations(plan, bounds, decision, estimate), reservations, requests, tokens, place)

    def _count_place(self, by: int, place: PlanPlace) -> None:
        for group in place.groups:
            self.in_flight[place.key, group] += by

    def _apply(self, incarnation: str, settlement: Settlement) -> None:
        settle(self._book(settlement.reservation.key), incarnation, (settlement,), self._now_ms())

    def _book(self, key: str) -> CounterHash:
        return self.books.setdefault(key, CounterHash(self._lease_ms))


class LaterCounters(FakeCounters):
    """Answers in a later turn of the loop, with a future, as the real ones do. `admitted`: how many calls it let in."""

    admitted = 0

    def ask(self, plan: Plan, estimate: Estimate, further: Sequence[Plan] = ()) -> Awaitable[Taken | LimitHit]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Taken | LimitHit] = loop.create_future()
        loop.call_soon(self._answer, answer, plan, estimate)
        return answer

    def abandon(self, question: Awaitable[Taken | LimitHit]) -> None:
        if isinstance(question, asyncio.Future) and question.done() and not question.cancelled():
            self.give_back(question.result())

    def _answer(self, answer: "asyncio.Future[Taken | LimitHit]", plan: Plan, estimate: Estimate) -> None:
        if not answer.done():
            self.admitted += 1
            answer.set_result(self._take(plan, estimate))


def _taken(
    reservations: tuple[Reservation, ...],
    returnable: tuple[Reservation, ...],
    requests: LimitStatus | None,
    tokens: LimitStatus | None,
    place: Place | None,
) -> Taken:
    lines = rate_limit_lines(requests, tokens)
    return Taken(reservations, returnable, lines, lambda: (requests, tokens), place)


def _status(plan: Plan, tightest: Tightest | None) -> LimitStatus | None:
    if tightest is None:
        return None
    return LimitStatus(plan.bounds[tightest.bound].limit.threshold, tightest.remaining, tightest.reset_ms)


def _reservations(
    plan: Plan, bounds: Sequence[Bound], decision: Decision, estimate: Estimate
) -> tuple[Reservation, ...]:
    groups = dict.fromkeys(bound.counting_group for bound in bounds)
    buckets = tuple((group, kind_mask(b.limit for b in bounds if b.counting_group == group)) for group in groups)
    return reservations_of(plan.key, buckets, decision.now_ms, estimate)


def _is_settled(plan: Plan, bound: Bound) -> bool:
    """Return whether a dispatched call settles it: requests only where the same bucket's TOKEN limits are settled."""
    types = {one.limit.type for one in plan.bounds if one.counting_group == bound.counting_group}
    return bound.limit.type.parts is not None or LimitType.TOKEN in types


def _tighter(one: LimitStatus | None, other: LimitStatus | None) -> LimitStatus | None:
    if one is None or other is None:
        return one or other
    return one if one.remaining < other.remaining else other
