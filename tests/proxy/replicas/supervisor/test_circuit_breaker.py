"""The circuit breaker: opens after five failures in a row, allows one trial per pause, closes on an answer."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from proxy.replicas.supervisor.circuit_breaker import (
    FAILURES_TO_OPEN,
    LONGEST_PAUSE_S,
    TABLE,
    Breaker,
    CallOutcome,
    State,
)


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES_TO_OPEN):
        assert breaker.ready(at)
        breaker.begin()
        breaker.record(CallOutcome.FAILED, at)
    return breaker


def test_table_has_every_event_in_every_state() -> None:
    assert set(TABLE) == set(product(State, CallOutcome))


def test_breaker_opens_after_five_failures_and_allows_one_trial_after_a_second() -> None:
    breaker = opened(at=10.0)
    assert not breaker.ready(10.999)
    assert breaker.ready(11.0)
    breaker.begin()
    assert not breaker.ready(11.0), "one trial at a time"


def test_answer_resets_the_count_of_failures() -> None:
    breaker = Breaker()
    for _ in range(3):
        for _ in range(FAILURES_TO_OPEN - 1):
            breaker.record(CallOutcome.FAILED, 0)
        breaker.record(CallOutcome.ANSWERED, 0)
    assert breaker.ready(0)


def test_pause_doubles_to_thirty_seconds_and_resets_on_an_answer() -> None:
    breaker = opened()
    now = 0.0
    pauses = []
    for _ in range(7):
        pauses.append(breaker.retry_at - now)
        now = breaker.retry_at
        breaker.begin()
        breaker.record(CallOutcome.FAILED, now)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    breaker.begin()
    breaker.record(CallOutcome.ANSWERED, now)
    assert breaker.state is State.CLOSED
    for _ in range(FAILURES_TO_OPEN):
        breaker.record(CallOutcome.FAILED, now)
    assert breaker.retry_at == now + 1


def test_abandoned_trial_allows_another_one() -> None:
    breaker = opened()
    breaker.begin()
    breaker.record(CallOutcome.ABANDONED, 1.5)
    assert breaker.ready(1.5)


def test_abandoned_calls_do_not_open_the_breaker() -> None:
    breaker = Breaker()
    for _ in range(100):
        breaker.begin()
        breaker.record(CallOutcome.ABANDONED, 0)
    assert breaker.ready(0)


@given(st.lists(st.tuples(st.sampled_from(CallOutcome), st.floats(0, 60))))
def test_breaker_allows_a_trial_after_the_longest_pause(steps: list[tuple[CallOutcome, float]]) -> None:
    breaker = Breaker()
    now = 0.0
    for event, elapsed in steps:
        now += elapsed
        if breaker.ready(now):
            breaker.begin()
            breaker.record(event, now)
        assert breaker.ready(now + LONGEST_PAUSE_S)
