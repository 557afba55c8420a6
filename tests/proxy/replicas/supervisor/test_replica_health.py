"""Probes decide a replica's health by thresholds in a row; until then its health is unknown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.deployments import HealthCheck
from proxy.replicas.supervisor.replica_health import VERDICTS, Probe, ReplicaHealth, State

GOOD = Probe.GOOD
BAD = Probe.BAD
CHECK = HealthCheck(healthy_after=2, unhealthy_after=3)
PROBES = st.lists(st.sampled_from(Probe), max_size=40)
CHECKS = st.builds(HealthCheck, healthy_after=st.integers(1, 5), unhealthy_after=st.integers(1, 5))


def after(*probes: Probe, check: HealthCheck = CHECK) -> ReplicaHealth:
    health = ReplicaHealth(check)
    for probe in probes:
        health.record(probe)
    return health


def test_every_kind_of_probe_has_a_verdict() -> None:
    assert set(VERDICTS) == set(Probe)
    assert {threshold for _, threshold in VERDICTS.values()} <= set(HealthCheck.__dataclass_fields__)


@pytest.mark.parametrize(
    ("probes", "state"),
    [
        ((), State.UNKNOWN),
        ((GOOD,), State.UNKNOWN),
        ((GOOD, GOOD), State.HEALTHY),
        ((BAD, BAD), State.UNKNOWN),
        ((BAD, BAD, BAD), State.UNHEALTHY),
        ((BAD, BAD, GOOD, BAD, BAD, GOOD), State.UNKNOWN),
        ((BAD, GOOD, GOOD), State.HEALTHY),
        ((GOOD, GOOD, BAD, BAD), State.HEALTHY),
        ((GOOD, GOOD, BAD, BAD, GOOD, BAD, BAD), State.HEALTHY),
        ((GOOD, GOOD, BAD, BAD, BAD), State.UNHEALTHY),
        ((BAD, BAD, BAD, GOOD), State.UNHEALTHY),
        ((BAD, BAD, BAD, GOOD, BAD, GOOD), State.UNHEALTHY),
        ((BAD, BAD, BAD, GOOD, GOOD), State.HEALTHY),
    ],
)
def test_thresholds_count_probes_in_a_row(probes: tuple[Probe, ...], state: State) -> None:
    assert after(*probes).state is state


def test_one_good_probe_makes_a_new_replica_healthy_by_default() -> None:
    assert after(GOOD, check=HealthCheck()).healthy


@given(CHECKS, PROBES)
def test_health_follows_the_last_run_that_was_long_enough(check: HealthCheck, probes: list[Probe]) -> None:
    needed = {GOOD: check.healthy_after, BAD: check.unhealthy_after}
    runs = [end for end in range(1, len(probes) + 1) if _ends_in(probes[:end], needed[probes[end - 1]])]
    expected = VERDICTS[probes[runs[-1] - 1]][0] if runs else State.UNKNOWN
    assert after(*probes, check=check).state is expected


def _ends_in(probes: list[Probe], in_a_row: int) -> bool:
    return probes[-in_a_row:] == [probes[-1]] * in_a_row


@given(CHECKS, PROBES)
def test_record_tells_of_exactly_the_changes(check: HealthCheck, probes: list[Probe]) -> None:
    health = ReplicaHealth(check)
    for probe in probes:
        before = health.state
        assert health.record(probe) is (health.state is not before)
