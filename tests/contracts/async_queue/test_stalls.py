"""A primary that stalls, is replaced, and comes back costs nothing: neither an accepted request nor an answer.

It acknowledges what lay in its socket, and is demoted. No process dies; `min-replicas-to-write` is not set.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from proxy.async_requests.states import Status
from proxy.edges.redis.async_queue.client import keys_of
from tests.contracts.async_queue.queue_load import Ledger, Load, check, process, state_after
from tests.contracts.async_queue.queue_world import WS
from tests.redis_cluster import CLUSTER_BINARY, MISSING, running_cluster, wait_for
from tests.redis_sentinel import running_sentinels
from tests.redis_server import RedisServer
from tests.redis_topologies import SEVERAL

pytestmark = pytest.mark.skipif(CLUSTER_BINARY is None, reason=MISSING)
AT_ONCE = 4
"""Calls, attempts and deliveries of each process."""
STALL_S = 2.0, 3.5


@dataclass
class Place:
    """`primary`: of the workspace's keys, as it is now. `replicas`: how many it has when all are well."""

    url: str
    primary: Callable[[], RedisServer]
    replicas: int

    def is_well(self) -> bool:
        role = self.primary().run("ROLE")
        return bool(role[0] == b"master" and len(role[2]) >= self.replicas)


@asynccontextmanager
async def running(kind: str) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        if kind == "cluster":
            cluster = await asyncio.to_thread(lambda: stack.enter_context(running_cluster()))
            yield Place(cluster.url, lambda: cluster.owner_of(keys_of(WS)).server, 1)
        else:
            sentinels = await asyncio.to_thread(lambda: stack.enter_context(running_sentinels(down_after_ms=1000)))
            yield Place(sentinels.url, lambda: sentinels.primary, 2)


async def stall(place: Place, seconds: float) -> None:
    """Stop the primary for so long, then wait until all replicas follow one."""
    server = place.primary()
    server.pause()
    try:
        await asyncio.sleep(seconds)
    finally:
        server.resume()
    await asyncio.sleep(1)
    await asyncio.to_thread(wait_for, place.is_well, "the replicas do not follow")


async def stalls_under_load(place: Place, stalls: int) -> Ledger:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    ledger = Ledger()
    load = Load(random_, ledger, abandons=0)
    async with (
        process(place.url, "c1") as one,
        process(place.url, "c2") as two,
        process(place.url, "w1") as first,
        process(place.url, "w2") as second,
        asyncio.TaskGroup() as group,
    ):
        callers = [group.create_task(load.call(caller)) for caller in (one, two) for _ in range(AT_ONCE)]
        for worker in (first, second):
            for _ in range(AT_ONCE):
                group.create_task(load.work(worker))
                group.create_task(load.deliver(worker))
        for _ in range(stalls):
            await asyncio.sleep(random_.uniform(1, 3))
            await stall(place, random_.uniform(*STALL_S))
        load.accepting = False
        await asyncio.gather(*callers)
        for id in sorted(ledger.accepted):
            ledger.saw(await state_after(one, id))
        load.running = False
    print(f"{len(ledger.accepted)} accepted")
    return ledger


def check_nothing_failed(ledger: Ledger) -> None:
    check(ledger)
    failed = {id for id, states in ledger.finals.items() if not states <= {Status.SUCCEEDED, Status.CANCELED}}
    assert not failed


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", SEVERAL)
async def test_stalled_primary_costs_neither_a_request_nor_an_answer(kind: str) -> None:
    async with running(kind) as place:
        check_nothing_failed(await stalls_under_load(place, 3))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", SEVERAL)
async def test_forty_stalls_cost_neither_a_request_nor_an_answer(kind: str) -> None:
    async with running(kind) as place:
        check_nothing_failed(await stalls_under_load(place, 40))
