"""A random walk of whole workers over places: what `places_machine.py` says holds, whatever happens."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.contracts.redis.places_machine import PlacesMachine
from tests.contracts.redis.places_network import LinkedLoop
from tests.redis_server import REDIS_BINARIES, private_redis


@pytest.fixture(params=REDIS_BINARIES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[PlacesMachine]]:
    loop = LinkedLoop()
    monkeypatch.setattr("time.monotonic", loop.time)  # the client's deadlines are of it
    with private_redis(binary=request.param) as server:
        yield type("BoundMachine", (PlacesMachine,), {"loop": loop, "redis_server": server})
    loop.close()


def explore(machine: type[PlacesMachine], examples: int, steps: int) -> None:
    thorough = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_state_machine_as_test(machine, settings=thorough)


def test_places_are_neither_lost_nor_given_twice(machine: type[PlacesMachine]) -> None:
    explore(machine, examples=60, steps=40)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_places_are_neither_lost_nor_given_twice_in_long_runs(machine: type[PlacesMachine]) -> None:
    explore(machine, examples=3_000, steps=80)
