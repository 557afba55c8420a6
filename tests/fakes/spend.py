"""The spend counters in memory, on `policy/spend/spend_book.py`."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from policy.limits.windows import until_end_ms
from policy.spend.effective import BalanceBound, SpendBound, SpendPlan
from policy.spend.spend_book import Call, IncompleteReservationsError, SpendBook
from proxy.accounting.spend_taken import GUESS_MS, SpendHit, SpendTaken, SpendUnavailable

INCARNATION = "fakeincarnation0"
EPOCH = "epoch"
Answer = SpendTaken | SpendHit | SpendUnavailable
Question = Awaitable[Answer]


class FakeSpend:
    """`now_ms`: the clock. `books`: by key; one that is not here counts nothing, and admits every call.

    `takes`, `ended`, `given_back`: event keys, in order. `may_reserve`: control knows this machine.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.books: dict[str, SpendBook] = {}
        self.takes: list[str] = []
        self.ended: dict[str, int] = {}
        self.given_back: list[str] = []
        self.may_reserve = True
        self._now_ms = now_ms

    def count(self, plan: SpendPlan) -> SpendBook:
        """Have what the plan's tree spends counted."""
        book = self.books[plan.key] = SpendBook()
        book.build(EPOCH, 0, {})
        book.complete(EPOCH, {})
        return book

    def ask(self, plan: SpendPlan, event_key: str, picos: int, least: int = 0) -> Question:
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(self._take(plan, event_key, picos, least))
        return answer

    def abandon(self, question: Question) -> None:
        assert isinstance(question, asyncio.Future)
        if not question.done():
            question.cancel()
        elif not question.cancelled() and question.exception() is None:
            answer = question.result()
            if isinstance(answer, SpendTaken):
                self.give_back(answer)

    def end(self, take: SpendTaken, picos: int) -> None:
        assert take.event_key not in self.ended
        self.ended[take.event_key] = picos
        if take.is_counted:
            self.books[take.plan.key].end(take.event_key, picos)

    def give_back(self, take: SpendTaken) -> None:
        self.given_back.append(take.event_key)
        if take.is_counted:
            self.books[take.plan.key].give_back(take.event_key)

    def check_settled(self) -> None:
        """Assert that each call that was admitted ended, or gave back what it took, once."""
        assert sorted(self.takes) == sorted([*self.ended, *self.given_back])

    def _take(self, plan: SpendPlan, event_key: str, picos: int, least: int) -> Answer:
        at_ms = self._now_ms()
        book = self.books.get(plan.key, SpendBook())
        try:
            admission = book.admit(plan, [Call(event_key, picos, least)], INCARNATION, at_ms)
        except IncompleteReservationsError:
            return SpendUnavailable("reservations may be missing")
        if plan.is_hard and (admission is None or not self.may_reserve):
            book.release(event_key)
            return SpendUnavailable("nobody counts, or this machine is not known")
        if admission is not None and admission.refused_by:
            place = admission.refused_by - 1
            bound: SpendBound | BalanceBound | None
            bound = plan.balance if place == len(plan.bounds) else plan.bounds[place]
            assert bound is not None
            is_spent = admission.wait_ms > 0
            wait_ms = admission.wait_ms or GUESS_MS
            if not is_spent and isinstance(bound, SpendBound):
                wait_ms = min(GUESS_MS, until_end_ms(bound.limit.unit, at_ms))
            return SpendHit(bound, wait_ms, is_spent=is_spent)
        self.takes.append(event_key)
        is_counted = admission is not None
        if admission is not None and plan.is_hard:
            [picos] = admission.grants
        return SpendTaken(plan=plan, event_key=event_key, picos=picos, is_counted=is_counted)


class LaterSpend(FakeSpend):
    """Answers `turns` turns of the loop later, as the real one does."""

    def __init__(self, now_ms: Callable[[], int], turns: int = 1) -> None:
        super().__init__(now_ms)
        self._turns = turns

    def ask(self, plan: SpendPlan, event_key: str, picos: int, least: int = 0) -> Question:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._later(self._turns, answer, partial(self._take, plan, event_key, picos, least))
        return answer

    def _later(self, turns: int, answer: "asyncio.Future[Answer]", take: Callable[[], Answer]) -> None:
        loop = asyncio.get_running_loop()
        if turns:
            loop.call_soon(self._later, turns - 1, answer, take)
            return
        reply = take()  # the server takes, whoever still waits
        if not answer.done():
            answer.set_result(reply)
        elif isinstance(reply, SpendTaken):
            self.give_back(reply)
