"""Places after losses of connections, words and data, step by step, in the network of `places_network.py`."""

import asyncio
from collections.abc import Iterator

import pytest

from policy.limits.effective import Plan
from policy.limits.in_flight.places import RENEWAL_S
from policy.limits.kinds import LimitType, Unit
from proxy.accounting.reservations import Taken
from tests.contracts.redis.counters_world import group, plan_of
from tests.contracts.redis.places_network import LinkedLoop
from tests.contracts.redis.places_world import ESTIMATE, Worker, World
from tests.redis_server import REDIS_BINARIES, private_redis

IN_FLIGHT = LimitType.CONCURRENT_REQUEST, Unit.SECOND
TWO = plan_of(group("g1", {IN_FLIGHT: 2}))
MANY = 4100
"""Groups of one hash: more than a Lua script can name in one call."""


class Scene:
    """Two workers of one machine."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.loop = world.loop
        self.loop.now(world.add_machine(2))
        self.one, self.other = world.workers

    def begin(self, worker: Worker, number: int, plan: Plan = TWO) -> int:
        """Begin calls. Return how many were admitted."""
        answers = self.loop.now(self.world.begin({worker: number}, plan))[worker]
        admitted = [(answer, ()) for answer in answers if isinstance(answer, Taken)]
        worker.calls += admitted
        return len(admitted)

    def end(self, worker: Worker) -> None:
        def all_of_them() -> None:
            for call in list(worker.calls):
                self.world.end(worker, call)

        self.loop.now(all_of_them)

    def wait(self, seconds: float) -> None:
        self.loop.now(asyncio.sleep(seconds))


@pytest.fixture(params=REDIS_BINARIES)
def scene(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    loop = LinkedLoop()
    monkeypatch.setattr("time.monotonic", loop.time)
    with private_redis(binary=request.param) as server:
        new_scene = Scene(World(loop, server, repeats_refusals=False))
        yield new_scene
        loop.now(new_scene.world.close())
    loop.close()


def test_calls_that_end_while_redis_is_away_give_their_places_back_when_it_returns(scene: Scene) -> None:
    assert scene.begin(scene.one, 2) == 2
    scene.one.link.cut(arrives=False)
    scene.end(scene.one)
    scene.wait(3 * RENEWAL_S)
    assert scene.begin(scene.other, 1) == 0
    scene.one.link.heal()
    scene.wait(RENEWAL_S)
    assert scene.begin(scene.other, 3) == 2


def test_a_late_word_that_nothing_is_in_flight_frees_no_later_call(scene: Scene) -> None:
    scene.begin(scene.one, 2)
    scene.end(scene.one)
    scene.wait(RENEWAL_S + 0.5)
    scene.one.link.holds_requests = True
    scene.wait(RENEWAL_S)
    scene.one.link.cut(arrives=True)
    assert scene.one.link.under_way
    scene.one.link.heal()
    scene.wait(1)
    assert scene.begin(scene.one, 2) == 2
    scene.one.link.deliver()
    assert scene.begin(scene.other, 1) == 0


def test_a_late_word_brings_no_place_back_of_a_group_that_is_idle(scene: Scene) -> None:
    scene.begin(scene.one, 2)
    scene.wait(RENEWAL_S - 0.1)
    scene.one.link.holds_requests = True
    scene.wait(2)
    scene.end(scene.one)
    scene.wait(RENEWAL_S + 1)
    scene.one.link.cut(arrives=False)
    assert scene.one.link.under_way, "it says that two calls are in flight"
    scene.one.link.heal()
    scene.wait(RENEWAL_S + 1)
    scene.one.link.deliver()
    assert scene.begin(scene.other, 2) == 2


def test_a_place_that_a_fail_over_brings_back_goes_with_the_next_word(scene: Scene) -> None:
    scene.begin(scene.one, 2)
    replica = scene.world.copy()
    scene.end(scene.one)
    scene.wait(3 * RENEWAL_S)
    scene.world.fail_over_to(replica)
    assert scene.begin(scene.one, 1) == 0
    scene.wait(RENEWAL_S + 0.1)
    assert scene.begin(scene.one, 3) == 2


def test_a_worker_says_what_it_has_in_thousands_of_groups_of_a_hash(scene: Scene) -> None:
    root = group("root", {IN_FLIGHT: MANY})
    plans = [plan_of(group(f"g{number}", {IN_FLIGHT: 1}, "root"), root) for number in range(MANY)]
    counters = scene.one.counters

    async def begin_and_end_all() -> None:
        calls = []
        for start in range(0, MANY, 100):
            calls += await asyncio.gather(*(counters.take(plan, ESTIMATE) for plan in plans[start : start + 100]))
        assert all(isinstance(call, Taken) for call in calls)
        for call in calls:
            assert isinstance(call, Taken)
            assert call.place is not None
            call.place.release()

    scene.loop.now(begin_and_end_all())
    assert scene.begin(scene.other, 1, plans[0]) == 1
    assert scene.begin(scene.other, 1, plans[-1]) == 1
    scene.end(scene.other)
    scene.loop.now(scene.world.kill(scene.one, arrives=False))
    scene.wait(3 * RENEWAL_S)
    key = plans[0].key.encode()
    assert not any(places.entries for places in scene.world.places(key).values())
