"""What probes say about a replica: thresholds in a row, and an unknown replica that stays what it was."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.deployments import HealthCheck
from proxy.replicas.supervisor.replica_health import TABLE, Probe, ReplicaHealth, State

GOOD, BAD = Probe.GOOD, Probe.BAD
CHECK = HealthCheck(healthy_after=2, unhealthy_after=3)
PROBES = st.lists(st.sampled_from(Probe), max_size=40)
CHECKS = st.builds(HealthCheck, healthy_after=st.integers(1, 5), unhealthy_after=st.integers(1, 5))


def after(*probes: Probe, check: HealthCheck = CHECK, healthy: bool = False) -> ReplicaHealth:
    health = ReplicaHealth(check, healthy)
    for probe in probes:
        health.record(probe)
    return health


def test_table_has_every_probe_in_every_state() -> None:
    assert set(TABLE) == set(product(State, Probe))


@pytest.mark.parametrize(
    ("probes", "state", "healthy"),
    [
        ((), State.UNKNOWN, False),
        ((GOOD,), State.UNKNOWN, False),
        ((GOOD, GOOD), State.HEALTHY, True),
        ((BAD,), State.UNHEALTHY, False),
        ((BAD, GOOD), State.UNHEALTHY, False),
        ((BAD, GOOD, BAD, GOOD), State.UNHEALTHY, False),
        ((BAD, GOOD, GOOD), State.HEALTHY, True),
        ((GOOD, GOOD, BAD, BAD), State.HEALTHY, True),
        ((GOOD, GOOD, BAD, BAD, GOOD, BAD, BAD), State.HEALTHY, True),
        ((GOOD, GOOD, BAD, BAD, BAD), State.UNHEALTHY, False),
    ],
)
def test_thresholds_count_probes_in_a_row(probes: tuple[Probe, ...], state: State, healthy: bool) -> None:
    health = after(*probes)
    assert (health.state, health.healthy) == (state, healthy)


def test_one_good_probe_makes_a_new_replica_healthy_by_default() -> None:
    assert after(GOOD, check=HealthCheck()).healthy


def test_replica_stays_healthy_under_a_changed_check_until_a_probe_fails() -> None:
    assert after(healthy=True).healthy
    assert after(GOOD, healthy=True).healthy
    assert not after(GOOD, BAD, healthy=True).healthy
    assert after(GOOD, GOOD, BAD, healthy=True).healthy


@given(CHECKS, PROBES)
def test_health_follows_the_last_probes_in_a_row(check: HealthCheck, probes: list[Probe]) -> None:
    """The same by definition: look back for the last run that was long enough."""
    expected = State.UNKNOWN
    for end in range(1, len(probes) + 1):
        seen = probes[:end]
        needed = {GOOD: check.healthy_after, BAD: 1 if expected is State.UNKNOWN else check.unhealthy_after}[seen[-1]]
        if seen[-needed:] == [seen[-1]] * needed:
            expected = State.HEALTHY if seen[-1] is GOOD else State.UNHEALTHY
        assert after(*seen, check=check).state is expected


@given(CHECKS, PROBES, st.booleans())
def test_record_tells_of_exactly_the_changes(check: HealthCheck, probes: list[Probe], healthy: bool) -> None:
    health = ReplicaHealth(check, healthy)
    for probe in probes:
        before = health.state
        assert health.record(probe) is (health.state is not before)
        assert health.state is State.UNKNOWN or health.healthy is (health.state is State.HEALTHY)
        assert health.in_a_row < max(check.healthy_after, check.unhealthy_after)
