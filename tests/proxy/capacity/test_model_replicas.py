"""Load balancing over a model's replicas, and their circuit breakers."""

import random
from collections import Counter

from proxy.capacity.circuit_breaker import FAILURES_TO_OPEN, Event
from proxy.capacity.model_replicas import Fleet

A, B, C = "http://a", "http://b", "http://c"


def choosing(*choices: int) -> Fleet:
    """A fleet with these random choices."""
    left = list(choices)
    return Fleet(lambda below: left.pop(0) % below)


def always_first() -> Fleet:
    return Fleet(lambda below: 0)


def test_less_loaded_of_two_random_replicas_gets_the_call() -> None:
    fleet = choosing(0, 0, 0, 0, 1, 0)
    assert [fleet.begin_call([A, B], 0).replica.url for _ in range(3)] == [A, B, B]  # type: ignore[union-attr] # there is one


def test_two_different_replicas_are_compared() -> None:
    for one in range(3):
        for other in range(2):
            fleet = choosing(one, other)
            fleet.replica([A, B, C][one]).in_flight = 1
            replica_call = fleet.begin_call([A, B, C], 0)
            assert replica_call is not None
            assert replica_call.replica.url != [A, B, C][one]


def test_replica_with_an_open_breaker_gets_no_call() -> None:
    fleet = always_first()
    for _ in range(FAILURES_TO_OPEN):
        fleet.replica(A).breaker.record(Event.FAILED, 0)
    assert {fleet.begin_call([A, B], 0.5).replica.url for _ in range(5)} == {B}  # type: ignore[union-attr] # there is one
    assert fleet.begin_call([A], 0.5) is None
    assert fleet.begin_call([], 0.5) is None


def test_open_breaker_allows_one_trial_at_a_time() -> None:
    fleet = always_first()
    for _ in range(FAILURES_TO_OPEN):
        fleet.replica(A).breaker.record(Event.FAILED, 0)
    trial = fleet.begin_call([A], 1.0)
    assert trial is not None
    assert fleet.begin_call([A], 1.0) is None
    trial.end()
    trial.end()
    assert fleet.replica(A).in_flight == 0
    assert fleet.begin_call([A], 1.0) is not None


def test_many_calls_spread_evenly() -> None:
    fleet = Fleet(random.Random(7).randrange)
    calls = [fleet.begin_call([A, B, C], 0) for _ in range(300)]
    counts = Counter(replica_call.replica.url for replica_call in calls if replica_call)
    assert max(counts.values()) - min(counts.values()) <= 3


def test_idle_replicas_are_forgotten() -> None:
    fleet = Fleet(lambda below: 0, max_known=10)
    for number in range(100):
        replica_call = fleet.begin_call([f"http://{number}"], 0)
        assert replica_call is not None
        replica_call.record(Event.ANSWERED, 0)
        replica_call.end()
    assert len(fleet._known) <= 10
