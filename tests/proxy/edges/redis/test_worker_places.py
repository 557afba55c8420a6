"""The supervisor's care for its workers' places: it renews those of the living and returns those of the dead."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest

from policy.limits.in_flight.places import Says
from proxy.edges.redis.supervisor.worker_places import LATE_COMMANDS_S, LIVES_INTERVAL_S, WorkerPlaces

SKIPS_IDLE_TIME = True
Said = tuple[str, str, tuple[str, ...], Says]


class Redis:
    """Hears words, or is away."""

    def __init__(self) -> None:
        self.words: list[Said] = []
        self.is_away = False

    async def tell(self, incarnation: str, key: str, groups: Iterable[str], says: Says) -> bool:
        if not self.is_away:
            self.words.append((incarnation, key, tuple(groups), says))
        return not self.is_away


@pytest.fixture
def server() -> Redis:
    return Redis()


@pytest.fixture
async def places(server: Redis) -> AsyncIterator[WorkerPlaces]:
    those = WorkerPlaces(server.tell)
    task = asyncio.create_task(those.run())
    yield those
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def may_hold(key: str, *groups: str) -> dict[str, object]:
    return {"is": "places", "key": key, "groups": list(groups), "ended": False}


def holds_none(key: str, *groups: str) -> dict[str, object]:
    return may_hold(key, *groups) | {"ended": True}


async def test_a_living_worker_is_renewed_where_it_may_hold_places(places: WorkerPlaces, server: Redis) -> None:
    places.received("a", may_hold("k1", "g1"))
    places.received("a", may_hold("k1", "g2", "g4"))
    places.received("a", holds_none("k1", "g4"))
    places.received("a", may_hold("k2", "g3"))
    places.received("a", holds_none("k2", "g3"))
    await asyncio.sleep(LIVES_INTERVAL_S + 1)
    assert server.words == [("a", "k1", ("g1", "g2"), Says.LIVES)]


async def test_places_of_a_dead_worker_are_returned_at_once_and_again(places: WorkerPlaces, server: Redis) -> None:
    places.received("a", may_hold("k1", "g1"))
    places.received("b", may_hold("k1", "g1"))
    places.died("a")
    await asyncio.sleep(0.1)
    assert server.words == [("a", "k1", ("g1",), Says.GONE)]
    await asyncio.sleep(LATE_COMMANDS_S)
    assert server.words == [("a", "k1", ("g1",), Says.GONE)] * 2, "a last command may have run meanwhile"
    server.words.clear()
    await asyncio.sleep(LIVES_INTERVAL_S)
    assert {incarnation for incarnation, *_ in server.words} == {"b"}


async def test_places_are_returned_when_redis_is_back(places: WorkerPlaces, server: Redis) -> None:
    server.is_away = True
    for number in range(250):
        places.received("a", may_hold(f"k{number}", "g1"))
    places.died("a")
    await asyncio.sleep(5)
    assert not server.words
    server.is_away = False
    await asyncio.sleep(1)
    assert len(server.words) == 250


async def test_a_worker_without_places_needs_nothing(places: WorkerPlaces, server: Redis) -> None:
    places.died("a")
    await asyncio.sleep(LIVES_INTERVAL_S + 1)
    assert not server.words
