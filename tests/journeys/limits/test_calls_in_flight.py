"""CONCURRENT_REQUEST limits against 200 callers over two machines with two workers each, one of them killed or cut off.

The upstream counts what it has in flight. Each call has a connection of its own, so that all workers get some.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import cycle

import aiohttp
import pytest
from redis.asyncio import Redis

from policy.limits.counter_layout import bucket_key
from policy.limits.in_flight.places import SILENT_MS
from tests.journeys.conftest import Stage, Workspace
from tests.journeys.product import kill, models
from tests.journeys.second_machine import second_proxy, serves
from tests.ports import own_port
from tests.upstream import ScriptedUpstream
from tests.upstream.chat_completions import DONE, begin_events, chat_chunk, end_events, event, send_event
from tests.upstream.exchange import Exchange

THRESHOLD = 20
CALLERS = 200
FIRST = 8
"""The callers of the first machine alone, so that it surely holds places."""
RETRY_S = 0.2
"""A caller comes back sooner than it is told, so that the limit is always full."""
KIND = "CONCURRENT_REQUEST"


@dataclass
class InFlight:
    """The calls that the upstream has in flight. It streams for a moment, and for as long as the gate is closed."""

    now: int = 0
    most: int = 0

    async def behave(self, exchange: Exchange) -> None:
        await exchange.read_body()
        self.now += 1
        self.most = max(self.most, self.now)
        departure = asyncio.create_task(exchange.client_closed())
        passed = asyncio.create_task(self._stream(exchange))
        try:
            await asyncio.wait((passed, departure), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.now -= 1  # before the last byte: then the caller may call again
        has_left = departure.done()
        for task in (passed, departure):
            task.cancel()
        await asyncio.gather(passed, departure, return_exceptions=True)
        if has_left:
            exchange.close()
            return
        finish = [{"index": 0, "delta": {}, "finish_reason": "stop"}]
        await send_event(exchange, event(chat_chunk("m", finish)))
        await send_event(exchange, DONE)
        await end_events(exchange)

    async def _stream(self, exchange: Exchange) -> None:
        await begin_events(exchange)
        await send_event(exchange, event(chat_chunk("m", [{"index": 0, "delta": {"content": "a"}}])))
        await asyncio.sleep(random.uniform(0.01, 0.1))
        await exchange.gate.passed()


@pytest.fixture
def in_flight() -> InFlight:
    return InFlight()


@pytest.fixture
async def counting_upstream(in_flight: InFlight) -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(default=in_flight.behave, port=own_port()) as upstream:
        yield upstream
        upstream.gate.open()


@pytest.fixture(scope="module")
def second_machine(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with second_proxy(workspace.product, tmp_path_factory.mktemp("machine") / "second", workers=2) as url:
        yield url


@dataclass
class Crowd:
    """Callers of a group, who go to all machines in turn and come back until they are answered."""

    stage: Stage
    session: aiohttp.ClientSession
    in_flight: InFlight
    upstream: ScriptedUpstream
    group: str
    key: str
    machines: list[str]
    answered: int = 0
    broken: int = 0
    waits: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    headers: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.turns = cycle(self.machines)

    async def get_through(self) -> None:
        """Call until an answer comes whole; count what broke off."""
        while not await self.call():
            await asyncio.sleep(RETRY_S)

    async def call(self) -> bool:
        headers = {"Authorization": f"Bearer {self.key}"}
        body = {"model": self.stage.slug, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        try:
            url = next(self.turns) + "/v1/chat/completions"
            async with self.session.post(url, json=body, headers=headers) as answer:
                text = await answer.text()
        except aiohttp.ClientError:
            self.broken += 1
            return False
        if answer.status == 429:
            self.waits.add(answer.headers["retry-after"])
            self.texts.add(text)
            self.headers |= {name for name in answer.headers if name.lower().startswith("x-ratelimit")}
            return False
        assert answer.status == 200, text
        is_whole = "[DONE]" in text
        self.answered += is_whole
        self.broken += not is_whole
        return is_whole

    async def fill(self) -> list[asyncio.Task[None]]:
        """Let the callers come, the first ones to the first machine alone, until the limit is full.

        No call ends before the gate is opened again.
        """
        self.upstream.gate.close()
        machines = self.turns
        self.turns = cycle(self.machines[:1])
        callers = [asyncio.create_task(self.get_through()) for _ in range(FIRST)]
        await self.until_in_flight(FIRST)
        self.turns = machines
        callers += [asyncio.create_task(self.get_through()) for _ in range(CALLERS - FIRST)]
        await self.until_in_flight(THRESHOLD)
        return callers

    async def used(self) -> int:
        """The calls that the limit counts, as control reads them."""
        items = (await self.stage.operator.call("GET", f"/v1/gateway/groups/{self.group}/limits"))["items"]
        (item,) = [one for one in items if one["type"] == KIND]
        return int(item["current_usage"])

    async def until_in_flight(self, count: int) -> None:
        async def are() -> bool:
            return self.in_flight.now == count

        await self.stage.until(are, f"{count} calls are in flight")

    async def until_used(self, count: int) -> None:
        async def is_so() -> bool:
            return await self.used() == count

        await self.stage.until(is_so, f"the limit counts {count}")


@pytest.fixture
async def crowd(
    stage: Stage, second_machine: str, in_flight: InFlight, counting_upstream: ScriptedUpstream
) -> AsyncIterator[Crowd]:
    await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, counting_upstream.url))
    group = await stage.operator.group(stage.name, models(stage.slug, (KIND, "MINUTE", THRESHOLD)))
    key = await stage.operator.key(group)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        machines = [stage.product.proxy, second_machine]
        new_crowd = Crowd(stage, session, in_flight, counting_upstream, group, key, machines)

        async def are_ready() -> bool:
            return all([await serves(session, machine, key) for machine in machines])

        await stage.until(are_ready, "all machines serve the key")
        yield new_crowd


async def test_every_caller_gets_through_and_never_more_than_the_threshold_are_in_flight(crowd: Crowd) -> None:
    callers = await crowd.fill()
    crowd.upstream.gate.open()
    await asyncio.gather(*callers)
    assert crowd.in_flight.most == THRESHOLD
    assert (crowd.answered, crowd.broken) == (CALLERS, 0)
    assert crowd.waits == {"1"}
    assert not crowd.headers, "x-ratelimit-* tell of REQUEST and TOKEN limits"
    (text,) = crowd.texts
    assert f"Rate limit exceeded for {crowd.stage.slug}: {THRESHOLD} {KIND}" in text
    await crowd.until_used(0)


async def test_places_of_a_killed_worker_are_back_long_before_it_would_be_silent(crowd: Crowd) -> None:
    callers = await crowd.fill()
    before = time.monotonic()
    for victim in crowd.stage.product.processes("-m proxy.worker "):
        kill(victim)

    async def calls_broke_off() -> bool:
        return crowd.broken > 0

    await crowd.stage.until(calls_broke_off, "the worker's calls broke off")
    await crowd.until_in_flight(THRESHOLD)
    assert time.monotonic() - before < SILENT_MS / 1000 / 2, "its supervisor returned them"
    await crowd.until_used(THRESHOLD)
    crowd.upstream.gate.open()
    await asyncio.gather(*callers)
    assert crowd.in_flight.most == THRESHOLD
    assert crowd.answered == CALLERS
    await crowd.until_used(0)


async def test_a_worker_that_is_cut_off_keeps_its_calls_and_they_count_again(crowd: Crowd) -> None:
    callers = await crowd.fill()
    await crowd.until_used(THRESHOLD)
    workers = crowd.stage.product.processes("-m proxy.worker ")
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    try:
        await lose_counters(crowd)  # as if all places had been given away, or a fail-over had lost them
        await crowd.stage.until(lambda: has_refused_again(crowd), "the others' calls count again, and fill the limit")
        assert crowd.in_flight.now > THRESHOLD, "the places of the worker that is away were given to others"
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
    await crowd.stage.until(lambda: counts_all(crowd), "the limit counts all calls in flight")
    crowd.upstream.gate.open()
    await asyncio.gather(*callers)
    assert (crowd.answered, crowd.broken) == (CALLERS, 0), "it kept its calls"
    crowd.in_flight.most = 0
    callers = await crowd.fill()
    crowd.upstream.gate.open()
    await asyncio.gather(*callers)
    assert crowd.in_flight.most == THRESHOLD
    await crowd.until_used(0)


async def counts_all(crowd: Crowd) -> bool:
    return await crowd.used() == crowd.in_flight.now > THRESHOLD


async def has_refused_again(crowd: Crowd) -> bool:
    """The limit is full: by more than it, once workers say again what they had when the counters were lost."""
    return await crowd.used() >= THRESHOLD and crowd.in_flight.now > THRESHOLD


async def lose_counters(crowd: Crowd) -> None:
    """Delete the hash that counts the calls, in the Redis that the product runs itself."""
    folder = os.open(crowd.stage.product.data, os.O_RDONLY)  # a socket's path must be short
    try:
        async with Redis.from_url(f"unix:///proc/self/fd/{folder}/redis.sock") as client:
            assert await client.delete(bucket_key(crowd.group, crowd.stage.slug)) == 1
    finally:
        os.close(folder)
