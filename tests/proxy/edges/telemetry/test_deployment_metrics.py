"""The gauges by deployment: only those with calls lately, within a bound, and the outcomes of probes.

See docs/reference/metrics.md.
"""

from collections import Counter

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from policy.deployment_load import DeploymentLoad
from proxy.edges.telemetry.supervisor.deployment_metrics import QUIET_S, DeploymentMetrics


class World:
    """Deployments, a clock, and what a scrape shows of them."""

    def __init__(self, most: int = 1000) -> None:
        self.now_s = 0.0
        self.loads: dict[str, DeploymentLoad] = {}
        self.outcomes: Counter[str] = Counter()
        self.metrics = DeploymentMetrics(self, self.outcomes, most, lambda: self.now_s)
        self.registry = CollectorRegistry()
        self.registry.register(self.metrics)

    def carry(self, id: str, in_flight: int, queued: int = 0, parked: int = 0) -> None:
        self.loads[id] = DeploymentLoad(f"m-{id}", id, in_flight, queued, parked, None, (), ())
        if in_flight or queued or parked:
            self.metrics.called(id)

    def load_of(self, deployment_id: str) -> DeploymentLoad | None:
        return self.loads.get(deployment_id)

    def workspace_of(self, deployment_id: str) -> str | None:
        return "ws" if deployment_id in self.loads else None

    def scrape(self) -> dict[str, float]:
        self.metrics.read()
        lines = generate_latest(self.registry).decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    def series(self) -> set[str]:
        """The ids of deployments with series."""
        return {
            name.partition('deployment_id="')[2].partition('"')[0] for name in self.scrape() if "deployment" in name
        }


@pytest.fixture
def world() -> World:
    return World()


def test_figures_are_shown_by_deployment(world: World) -> None:
    world.carry("d", in_flight=1, queued=2, parked=3)
    labels = '{deployment_id="d",model_id="m-d",workspace="ws"}'
    assert world.scrape() == {
        f"tollgate_deployment_in_flight_requests{labels}": 1,
        f"tollgate_deployment_queued_requests{labels}": 2,
        f"tollgate_deployment_parked_requests{labels}": 3,
    }


def test_deployment_without_calls_has_no_series(world: World) -> None:
    world.carry("d", in_flight=0)
    assert world.scrape() == {}


def test_series_fall_to_zero_and_end_some_minutes_after_the_last_call(world: World) -> None:
    world.carry("d", in_flight=1)
    world.now_s = 10 * QUIET_S
    assert set(world.scrape().values()) == {1, 0}, "a long call keeps its series"
    world.carry("d", in_flight=0)
    world.now_s += QUIET_S
    assert set(world.scrape().values()) == {0}
    world.now_s += 1
    assert world.scrape() == {}
    world.carry("d", in_flight=2)
    assert max(world.scrape().values()) == 2


def test_deleted_deployment_has_no_series(world: World) -> None:
    world.carry("d", in_flight=1)
    assert world.series() == {"d"}
    del world.loads["d"]
    assert world.series() == set()


def test_deployments_beyond_the_bound_count_together_until_there_is_room() -> None:
    world = World(most=2)
    for number in range(5):
        world.carry(f"d{number}", in_flight=1)
    assert world.series() == {"d0", "d1", "_other"}
    others = 'tollgate_deployment_in_flight_requests{deployment_id="_other",model_id="_other",workspace="ws"}'
    assert world.scrape()[others] == 3
    del world.loads["d0"]
    assert world.series() == {"d1", "d2", "_other"}, "who has a series keeps it"


def test_outcomes_of_probes_are_counted(world: World) -> None:
    world.outcomes.update(good=3, timeout=1)
    assert world.scrape() == {
        'tollgate_replica_probes_total{outcome="good"}': 3,
        'tollgate_replica_probes_total{outcome="timeout"}': 1,
    }
