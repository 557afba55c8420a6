"""The counters on a primary that real sentinels watch: they follow it, and count what it has not lost."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from policy.limits.effective import Plan
from policy.limits.settlement import Estimate
from proxy.accounting.reservations import LimitHit, Taken
from proxy.edges.redis.counters import RedisCounters
from proxy.edges.redis.nodes.sentinel import SentinelPrimary
from proxy.edges.redis.nodes.single import SingleNode
from proxy.errors import CountersUnavailableError
from runtime.redis.slots import Place
from runtime.redis.url import RedisUrl
from tests.contracts.redis.real_counters import counted, counters_at, plan, settle
from tests.contracts.redis.test_counters_access import NEEDED
from tests.fakes.throwaway_ca import ThrowawayCa
from tests.ports import HOST, own_port
from tests.redis_counters import pending_settlements
from tests.redis_sentinel import SERVICE, SentinelSet, lone_sentinel, role_of, running_sentinels
from tests.redis_server import tls_options
from tests.waiting import eventually

BOTH_LOOPS = True
THRESHOLD = 100


@pytest.fixture(scope="module")
def sentinels() -> Iterator[SentinelSet]:
    with running_sentinels() as running:
        yield running


async def admitted(counters: RedisCounters, plan: Plan, calls: int) -> list[Taken]:
    answers = await asyncio.gather(*(counters.take(plan, Estimate(1)) for _ in range(calls)))
    return [answer for answer in answers if isinstance(answer, Taken)]


async def replicated(sentinels: SentinelSet, plan: Plan, calls: int) -> None:
    """Wait until both replicas count these calls. A demoted primary follows the new one only after some seconds."""
    replicas = [server for server in sentinels.servers.values() if server is not sentinels.primary]
    await eventually(lambda: {counted(replica, plan)[0] for replica in replicas} == {calls}, "replicated", 60)


async def test_an_ordered_fail_over_is_followed(sentinels: SentinelSet) -> None:
    one = plan("ordered")
    async with counters_at(sentinels.url) as counters:
        before = await admitted(counters, one, 40)
        await replicated(sentinels, one, 40)
        new = await asyncio.to_thread(sentinels.fail_over)
        await eventually(lambda: uses(counters, sentinels.primary_port))
        settle(counters, before[0], 70)
        await eventually(lambda: pending_settlements(counters) == 0)
        assert len(await admitted(counters, one, 70)) == 60
        assert counted(new, one) == (100, 70)


def uses(counters: RedisCounters, port: int) -> bool:
    """Return whether the counters have followed: until then the old primary takes writes, which are lost."""
    nodes = counters._nodes
    assert isinstance(nodes, SingleNode)
    assert nodes._primary is not None
    return nodes._primary._place == Place(HOST, port) and counters.available


async def test_sentinels_that_are_away_or_silent_do_not_matter_while_others_answer(sentinels: SentinelSet) -> None:
    place = Place(HOST, sentinels.primary_port)
    silent = next(iter(sentinels.sentinels.values()))
    silent.pause()
    try:
        url = sentinels.url.replace("sentinel://", f"sentinel://{HOST}:{own_port()},")
        assert await SentinelPrimary(RedisUrl.parse(url)).find() == place
    finally:
        silent.resume()


async def test_what_most_sentinels_say_counts(sentinels: SentinelSet) -> None:
    with lone_sentinel(own_port()) as mistaken:
        url = sentinels.url.replace("sentinel://", f"sentinel://{mistaken},")
        for _ in range(5):
            assert await SentinelPrimary(RedisUrl.parse(url)).find() == Place(HOST, sentinels.primary_port)


async def test_a_replica_that_is_named_as_primary_is_not_taken(sentinels: SentinelSet) -> None:
    """Sentinels name a replica while a fail-over is under way."""
    port, replica = next(one for one in sentinels.servers.items() if one[1] is not sentinels.primary)
    await eventually(lambda: role_of(replica) == b"slave")
    with lone_sentinel(port) as mistaken:
        primary = SentinelPrimary(RedisUrl.parse(f"redis+sentinel://{mistaken}/{SERVICE}"))
        with pytest.raises(ConnectionError, match="still a replica"):
            (await primary.open(lambda: None)).abort()
    await asyncio.sleep(0.01)  # uvloop closes an aborted connection in one of its next turns


async def test_a_service_that_no_sentinel_knows_is_named(sentinels: SentinelSet) -> None:
    url = sentinels.url.replace(SERVICE, "other")
    with pytest.raises(ConnectionError, match=r"no sentinel .* names a primary of other"):
        await SentinelPrimary(RedisUrl.parse(url)).find()


async def test_a_primary_that_sentinels_no_longer_name_is_left(sentinels: SentinelSet) -> None:
    """The primary may be cut off from them, and still answer us."""
    primary = SentinelPrimary(RedisUrl.parse(sentinels.url))
    moved = asyncio.Event()
    (await primary.open(lambda: None)).abort()
    watching = asyncio.create_task(primary.watch(moved.set))
    await asyncio.to_thread(sentinels.fail_over)
    async with asyncio.timeout(20):
        await moved.wait()
    watching.cancel()


async def test_a_killed_primary_is_replaced_and_only_what_was_not_replicated_is_admitted_again(
    sentinels: SentinelSet,
) -> None:
    one = plan("killed")
    old_port = sentinels.primary_port
    old = sentinels.primary
    async with counters_at(sentinels.url) as counters:
        first = await admitted(counters, one, 30)
        await replicated(sentinels, one, 30)
        old.run("CLIENT", "KILL", "TYPE", "REPLICA")  # they connect again within a second
        before = first + await admitted(counters, one, 30)
        old.kill()
        settle(counters, before[0], 70)
        refusals = await asyncio.gather(*(counters.take(one, Estimate(1)) for _ in range(5)), return_exceptions=True)
        assert {type(answer) for answer in refusals} == {CountersUnavailableError}
        new = await asyncio.to_thread(sentinels.wait_for_new_primary, old_port)
        await eventually(lambda: counters.available)
        await eventually(lambda: pending_settlements(counters) == 0)
        kept_count, tokens = counted(new, one)
        assert 30 <= kept_count <= 60
        assert tokens == 70
        assert len(await admitted(counters, one, THRESHOLD)) == THRESHOLD - kept_count
    old.start()


async def test_tls_and_logins_of_their_own(tmp_path: Path) -> None:
    ca = ThrowawayCa(tmp_path)
    one = plan("tls")
    with running_sentinels(tls_options(ca), password="all") as running:
        for server in running.servers.values():
            server.run("ACL", "SETUSER", "limiter", "on", ">secret", *NEEDED, "+role")
        login = f"rediss+sentinel://limiter:secret@{running.hosts}/{SERVICE}?ssl_ca_certs={ca.ca_file}"
        async with counters_at(f"{login}&sentinel_password=all") as counters:
            assert len(await admitted(counters, one, 60)) == 60
            await replicated(running, one, 60)
            await asyncio.to_thread(running.fail_over)
            await eventually(lambda: uses(counters, running.primary_port))
            assert len(await admitted(counters, one, 50)) == 40
            assert isinstance(await counters.take(one, Estimate(1)), LimitHit)
        async with counters_at(login) as counters:
            with pytest.raises(CountersUnavailableError):
                await counters.take(one, Estimate(1))
