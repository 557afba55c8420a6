"""Places at replicas and what is shed: bookkeeping that must come out even."""

from collections import Counter

import pytest

from proxy.breaker import FAILURES_TO_OPEN, Event
from proxy.capacity import Capacity, CapacityLimits, Fleet
from proxy.refusals import ShedError

A, B, C = "http://a", "http://b", "http://c"


def fleet(*choices: int) -> Fleet:
    """A fleet whose chance is written down."""
    left = list(choices)
    return Fleet(lambda below: left.pop(0) % below)


def always_first() -> Fleet:
    return Fleet(lambda below: 0)


def test_the_less_loaded_of_two_random_replicas_is_taken() -> None:
    some = fleet(0, 0, 0, 0, 1, 0)
    assert [some.seat([A, B], 0).replica.url for _ in range(3)] == [A, B, B]  # type: ignore[union-attr] # a seat there is


def test_the_two_are_always_different_replicas() -> None:
    for one in range(3):
        for other in range(2):
            some = fleet(one, other)
            some.replica([A, B, C][one]).in_flight = 1
            seat = some.seat([A, B, C], 0)
            assert seat is not None
            assert seat.replica.url != [A, B, C][one]


def test_a_replica_whose_breaker_is_open_gets_nothing() -> None:
    some = always_first()
    for _ in range(FAILURES_TO_OPEN):
        some.replica(A).breaker.tell(Event.FAILED, 0)
    assert {some.seat([A, B], 0.5).replica.url for _ in range(5)} == {B}  # type: ignore[union-attr] # a seat there is
    assert some.seat([A], 0.5) is None
    assert some.seat([], 0.5) is None


def test_an_open_breaker_lets_one_call_try_and_gives_its_place_back_when_it_is_abandoned() -> None:
    some = always_first()
    for _ in range(FAILURES_TO_OPEN):
        some.replica(A).breaker.tell(Event.FAILED, 0)
    trial = some.seat([A], 1.0)
    assert trial is not None
    assert some.seat([A], 1.0) is None
    trial.leave()
    trial.leave()
    assert some.replica(A).in_flight == 0
    assert some.seat([A], 1.0) is not None


def test_many_calls_spread_evenly() -> None:
    import random

    chance = random.Random(7)
    some = Fleet(chance.randrange)
    seats = [some.seat([A, B, C], 0) for _ in range(300)]
    counts = Counter(seat.replica.url for seat in seats if seat)
    assert max(counts.values()) - min(counts.values()) <= 3


def test_what_is_known_of_gone_replicas_is_forgotten() -> None:
    some = Fleet(lambda below: 0, max_known=10)
    for number in range(100):
        seat = some.seat([f"http://{number}"], 0)
        assert seat is not None
        seat.tell(Event.ANSWERED, 0)
        seat.leave()
    assert len(some._known) <= 10


def test_each_bound_sheds_and_what_was_given_back_is_free_again() -> None:
    capacity = Capacity(CapacityLimits(max_in_flight=1, max_parked=1, max_held_bytes=10))
    capacity.enter()
    with pytest.raises(ShedError):
        capacity.enter()
    capacity.leave()
    with pytest.raises(ShedError):
        capacity.enter()
    capacity.leave()
    capacity.leave()
    capacity.enter()
    capacity.park()
    with pytest.raises(ShedError):
        capacity.park()
    capacity.unpark()
    capacity.park()
    capacity.hold(10)
    with pytest.raises(ShedError):
        capacity.hold(1)
    capacity.drop(10)
    capacity.hold(10)
