"""The loads that machines report: the book in Redis and the one in memory pass the same suite."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace

import pytest
from redis.asyncio import Redis

from control.edges.redis import load_book
from control.edges.redis.client import connect
from control.edges.redis.load_book import LocalLoadBook, RedisLoadBook
from control.records import loads
from control.records.loads import FIGURES_LAST_MS, HEALTH_LASTS_MS, Load
from control.resources.platform.loads import LoadBook
from policy.deployment_load import DeploymentLoad
from runtime.redis.routed import RoutedRedis
from tests.redis_server import REDIS_BINARIES, RedisServer, private_redis
from tests.redis_topologies import SEVERAL, Admin, running_redis
from tests.waiting import PATIENCE_S

DEADLINE_S = load_book._DEADLINE_S
ONE = "a" * 16
TWO = "b" * 16
BUSY = DeploymentLoad("mdl", "dep", 3, 2, 1, 1_000, ("http://r:1",), ("http://r:2",))
IDLE = replace(BUSY, in_flight=0, queued=0, parked=0)


class Clock:
    """A clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> float:
        return self.now_ms


class SharedAtTestTime(RedisLoadBook):
    """The book in Redis, by the test's clock. Its own process has heard nothing: `local` is empty."""

    def __init__(self, client: RoutedRedis, clock: Clock) -> None:
        super().__init__(client, LocalLoadBook(clock))
        self._clock = clock

    async def _time_ms(self) -> int:
        return self._clock.now_ms


@dataclass
class World:
    """`writer` takes reports; `reader` is what another part of control sees."""

    clock: Clock
    writer: LoadBook
    reader: LoadBook

    async def load(self, deployment_id: str = "dep") -> Load | None:
        return (await self.reader.loads([deployment_id])).get(deployment_id)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the deadline: on a busy machine Redis may be late."""
    monkeypatch.setattr(load_book, "_DEADLINE_S", 10)


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    with private_redis() as instance:
        yield instance


def client_of(server: RedisServer) -> aclosing[RoutedRedis]:
    return aclosing(connect(server.url))


@pytest.fixture(scope="module", params=["memory", REDIS_BINARIES[0], *SEVERAL])
def running(request: pytest.FixtureRequest) -> Iterator[tuple[str, Admin] | None]:
    if request.param == "memory":
        yield None
        return
    with running_redis(request.param) as instance:
        yield instance


@pytest.fixture(params=["one process", "two processes"])
async def world(request: pytest.FixtureRequest, running: tuple[str, Admin] | None) -> AsyncIterator[World]:
    clock = Clock()
    if running is None:
        book = LocalLoadBook(clock)
        yield World(clock, book, book)
        return
    url, admin = running
    admin.flushall()
    async with aclosing(connect(url)) as client:
        writer = SharedAtTestTime(client, clock)
        reader = SharedAtTestTime(client, clock) if request.param == "two processes" else writer
        yield World(clock, writer, reader)


async def test_unreported_deployment_is_missing(world: World) -> None:
    await world.writer.report(ONE, [BUSY])
    assert await world.reader.loads([]) == {}
    assert await world.load("other") is None


async def test_figures_of_machines_are_summed(world: World) -> None:
    await world.writer.report(ONE, [BUSY, replace(BUSY, deployment_id="other")])
    await world.writer.report(TWO, [replace(BUSY, in_flight=10, last_request_at_ms=2_000, healthy=("http://r:2",))])
    assert await world.load() == Load(13, 4, 2, 2_000, frozenset({"http://r:1", "http://r:2"}), frozenset())
    assert await world.load("other") == Load(3, 2, 1, 1_000, frozenset({"http://r:1"}), frozenset({"http://r:2"}))


async def test_later_report_of_a_machine_replaces_its_earlier_one(world: World) -> None:
    await world.writer.report(ONE, [BUSY])
    world.clock.now_ms += 1
    await world.writer.report(ONE, [replace(IDLE, last_request_at_ms=None, healthy=(), unhealthy=())])
    assert await world.load() == Load(healthy=frozenset())


async def test_figures_vanish_three_seconds_after_the_machines_last_report(world: World) -> None:
    await world.writer.report(ONE, [BUSY])
    world.clock.now_ms += FIGURES_LAST_MS - 1
    await world.writer.report(TWO, [BUSY])
    assert await world.load() == Load(6, 4, 2, 1_000, frozenset({"http://r:1"}), frozenset({"http://r:2"}))
    world.clock.now_ms += 1
    assert await world.load() == Load(3, 2, 1, 1_000, frozenset({"http://r:1"}), frozenset({"http://r:2"}))


async def test_health_stays_while_the_machine_is_heard(world: World) -> None:
    await world.writer.report(ONE, [BUSY])
    for _ in range(5):
        world.clock.now_ms += HEALTH_LASTS_MS - 1
        await world.writer.report(ONE, [])
    load = await world.load()
    assert load == Load(0, 0, 0, 1_000, frozenset({"http://r:1"}), frozenset({"http://r:2"}))
    world.clock.now_ms += HEALTH_LASTS_MS
    assert await world.load() in (None, Load())


async def test_health_of_a_machine_that_fell_silent_is_forgotten_for_good(world: World) -> None:
    await world.writer.report(ONE, [BUSY])
    world.clock.now_ms += HEALTH_LASTS_MS + 1
    await world.writer.report(TWO, [])
    assert await world.load() in (None, Load())
    await world.writer.report(ONE, [])
    assert await world.load() in (None, Load())


async def test_machine_that_died_before_redis_clock_was_set_back_is_forgotten(server: RedisServer) -> None:
    clock = Clock()
    async with client_of(server) as client:
        writer = SharedAtTestTime(client, clock)
        reader = SharedAtTestTime(client, Clock())
        clock.now_ms += 3_600_000
        await writer.report(ONE, [BUSY])
        await writer.report(TWO, [BUSY])
        clock.now_ms -= 3_600_000
        assert await reader.loads(["dep"]) in ({}, {"dep": Load()})
        await writer.report(TWO, [BUSY])
        assert (await reader.loads(["dep"]))["dep"].in_flight == BUSY.in_flight


async def test_many_deployments_are_reported_and_read_at_once(world: World) -> None:
    ids = [f"dep_{n}" for n in range(1000)]
    await world.writer.report(ONE, [replace(BUSY, deployment_id=id, parked=n) for n, id in enumerate(ids)])
    loads = await world.reader.loads(ids)
    assert [loads[id].parked for id in ids] == list(range(1000))


async def test_without_redis_a_process_knows_what_it_heard_itself(
    server: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_book, "_PAUSE_S", 0.0)
    monkeypatch.setattr(loads, "FIGURES_LAST_MS", 60_000)  # Redis is started again meanwhile
    async with client_of(server) as first, client_of(server) as second:
        one = RedisLoadBook(first)
        two = RedisLoadBook(second)
        await one.report(ONE, [BUSY])
        assert (await two.loads(["dep"]))["dep"].parked == 1
        server.kill()
        with caplog.at_level(logging.INFO):
            await one.report(ONE, [replace(BUSY, parked=7)])
            await two.report(TWO, [replace(BUSY, parked=5)])
        assert (await one.loads(["dep"]))["dep"].parked == 7
        assert (await two.loads(["dep"]))["dep"].parked == 5
        assert any("TOLLGATE_REDIS_URL" in record.message for record in caplog.records)
        server.start()
        # It lost its data. What each process heard is still there, and shared with the next report.
        assert (await one.loads(["dep"]))["dep"].parked == 7
        await two.report(TWO, [replace(BUSY, parked=5)])
        assert (await one.loads(["dep"]))["dep"].parked == 12


async def test_redis_that_hangs_delays_no_more_than_its_deadline(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_book, "_DEADLINE_S", DEADLINE_S)
    monkeypatch.setattr(loads, "FIGURES_LAST_MS", 60_000)  # two deadlines and a pause may take as long
    async with client_of(server) as client:
        book = RedisLoadBook(client)
        await book.report(ONE, [BUSY])
        server.pause()
        try:
            async with asyncio.timeout(PATIENCE_S):
                for _ in range(100):  # the first waits, the others do not ask
                    await book.report(ONE, [BUSY])
                assert (await book.loads(["dep"]))["dep"].parked == 1
        finally:
            server.resume()


async def test_fields_of_silent_machines_are_deleted(server: RedisServer) -> None:
    clock = Clock()
    async with client_of(server) as client, Redis.from_url(server.url) as own:
        book = SharedAtTestTime(client, clock)
        for n in range(20):
            await book.report(f"{n:016x}", [BUSY])
            clock.now_ms += HEALTH_LASTS_MS + 1
            await book.loads(["dep"])
        await book.report(ONE, [BUSY])
        await book.loads(["dep"])
        (key,) = [key async for key in own.scan_iter(match="tg:load:deployment:*")]
        assert await own.hkeys(key) == [ONE.encode()]
        assert await own.hlen("tg:load:machines") == 1


def test_memory_of_silent_machines_is_freed() -> None:
    clock = Clock()
    book = LocalLoadBook(clock)

    async def run() -> None:
        for n in range(100):
            await book.report(f"{n:016x}", [replace(BUSY, deployment_id=str(n))])
            clock.now_ms += HEALTH_LASTS_MS
        assert len([n for n in range(100) if book.heard(str(n))]) <= 2

    asyncio.run(run())
