"""The queue works for a Redis user with the permissions that docs/operating.md names, and with no others."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from proxy.async_requests.requests import Again, DeploymentRef, NewRequest, RequestError, Submission, Succeeded
from proxy.async_requests.states import ErrorCode, Status
from proxy.edges.redis.async_queue.client import QueueClient
from proxy.edges.redis.async_queue.commands import remedy_for
from tests.contracts.async_queue.queue_world import RedisQueue
from tests.fakes.throwaway_ca import ThrowawayCa
from tests.redis_cluster import PATIENT_MS, running_cluster
from tests.redis_sentinel import running_sentinels
from tests.redis_server import REDIS_BINARIES, RedisServer, private_redis, tls_options
from tests.redis_topologies import SEVERAL, documented_rules
from tests.waiting import PATIENCE_S, eventually

OPERATING = Path(__file__).parents[3] / "docs/operating.md"
DEPLOYMENT = DeploymentRef("ws", "mdl", "dep")
USER = "tollgate-async"
ERROR = RequestError(ErrorCode.MODEL_PREDICT_ERROR, "text")


def grant(server: RedisServer, kind: str) -> None:
    server.run("ACL", "SETUSER", USER, *documented_rules(USER, kind))


@pytest.fixture(params=SEVERAL)
def several(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of the user, over TLS."""
    ca = ThrowawayCa(tmp_path)
    tls = tls_options(ca)
    login = "tollgate-async:PASSWORD@"
    query = f"?ssl_ca_certs={ca.ca_file}"
    if request.param == "cluster":
        with running_cluster(options=[*tls, "--tls-cluster", "yes"], node_timeout_ms=PATIENT_MS) as cluster:
            for node in cluster.nodes:
                grant(node.server, request.param)
            yield cluster.url.replace("redis+cluster://", f"rediss+cluster://{login}") + query
    else:
        with running_sentinels(options=tls) as sentinels:
            for server in sentinels.servers.values():
                grant(server, request.param)
            yield sentinels.url.replace("redis+sentinel://", f"rediss+sentinel://{login}") + query


@pytest.fixture(params=REDIS_BINARIES)
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with private_redis(binary=request.param) as server:
        yield server


@pytest.fixture
async def queue(server: RedisServer) -> AsyncIterator[RedisQueue]:
    async with Redis.from_url(server.url) as admin:
        await admin.execute_command(  # type: ignore[no-untyped-call]  # redis-py has no types here
            "ACL", "SETUSER", USER, *documented_rules(USER)
        )
    client = QueueClient(server.url.replace("unix://", "unix://tollgate-async:PASSWORD@"))
    yield RedisQueue(client)
    assert client.trouble == ""
    await client.close()


async def test_documented_acl_rules_suffice_for_the_whole_queue(queue: RedisQueue, server: RedisServer) -> None:
    await use_everything(queue)
    server.kill()  # ends the subscription


@pytest.mark.parametrize("missing", ["+info", "+wait"])
async def test_missing_right_is_told_before_a_write_needs_it(server: RedisServer, missing: str) -> None:
    server.run("ACL", "SETUSER", USER, *(rule for rule in documented_rules(USER) if rule != missing))
    client = QueueClient(server.url.replace("unix://", "unix://tollgate-async:PASSWORD@"))
    queue = RedisQueue(client)
    await queue.sweep("ws")
    await eventually(lambda: client.trouble)
    await queue.sweep("ws")
    assert "NoPermission" in client.trouble
    assert remedy_for(client.trouble).startswith("Give its ACL user")
    await client.close()


async def test_they_suffice_on_several_servers_over_tls(several: str) -> None:
    client = QueueClient(several)
    async with asyncio.timeout(20):  # a subscription that is refused is tried again for ever
        await use_everything(RedisQueue(client))
    assert client.trouble == ""
    await client.close()


async def use_everything(queue: RedisQueue) -> None:
    hints = queue.queue_hints()
    assert await anext(hints) == ""
    ids = ("canceled", "delivered", "again", "gone")
    for id in ids:
        submission = Submission(b"{}", "https://hooks.example.com/in")
        await queue.submit(NewRequest(id, DEPLOYMENT, "/", submission), parks=False)
    assert await asyncio.wait_for(anext(hints), PATIENCE_S) == "ws"
    await queue.report_standing(DEPLOYMENT, ready=True)
    cancellation = await queue.cancel("ws", "canceled")
    assert cancellation is not None
    assert cancellation.canceled
    for id in ids[1:3]:
        attempt = await queue.start(DEPLOYMENT, "holder")
        assert attempt is not None
        assert attempt.ref.request_id == id
        await queue.renew([attempt.ref])
        await queue.store(attempt.ref, 0, b"1")
        assert await queue.finish(attempt.ref, Succeeded(1, 1) if id == "delivered" else Again(60_000, ERROR))
    assert (await queue.figures(DEPLOYMENT)).in_progress == 2
    assert len(await queue.overview()) == 1
    delivery = await queue.next_delivery("ws", "holder")
    assert delivery is not None
    assert await queue.chunk(delivery, 0) == b"1"
    await queue.renew_deliveries([delivery])
    assert await queue.undelivered(delivery, 0)
    await queue.sweep("ws")
    delivery = await queue.next_delivery("ws", "holder")
    assert delivery is not None
    assert await queue.delivered(delivery)
    assert await queue.fail_deployment(DEPLOYMENT) == 2
    while (delivery := await queue.next_delivery("ws", "holder")) is not None:
        assert await queue.delivered(delivery)
    assert await queue.workspaces() == ["ws"]
    await queue.sweep("ws")
    state = await queue.state("ws", "delivered")
    assert state is not None
    assert state.status is Status.SUCCEEDED
    await hints.aclose()
