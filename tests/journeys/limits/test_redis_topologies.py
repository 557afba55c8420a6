"""The whole product on a real Redis Cluster, and on a primary that real sentinels watch, through what happens to them.

Over TLS, and with no more permissions than the documentation gives. Each answered call is billed once, and no limit
admits too much, whatever becomes of the Redis servers.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator

import aiohttp
import pytest

from tests.fakes.throwaway_ca import ThrowawayCa
from tests.journeys.conftest import Stage, Workspace, stage_of, started
from tests.journeys.product import Product, models
from tests.ports import own_port
from tests.redis_cluster import CLUSTER_BINARY, MISSING, RedisCluster, running_cluster
from tests.redis_sentinel import SERVICE, SentinelSet, running_sentinels
from tests.redis_server import tls_options
from tests.redis_topologies import documented_rules
from tests.upstream import ScriptedUpstream
from tests.upstream.questions import answer_question

GROUPS = 9
PER_MINUTE = 40
TOKENS = 15
QUESTION = [{"role": "user", "content": "10/5/0/1/0"}]
Statuses = dict[str, Counter[int]]
NAMES_THE_PRIMARY = "+sentinel|get-master-addr-by-name"
SETTINGS = {"TOLLGATE_ASYNC": "off"}
"""Asynchronous requests need permissions of their own."""


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> ThrowawayCa:
    return ThrowawayCa(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def cluster(ca: ThrowawayCa) -> Iterator[RedisCluster]:
    options = [*tls_options(ca), "--tls-cluster", "yes"]
    with running_cluster(options=options, password="of-its-operator", node_timeout_ms=2_000) as running:
        for node in running.nodes:
            node.run("ACL", "SETUSER", "tollgate", *documented_rules("tollgate", "cluster"))
        yield running


@pytest.fixture(scope="module")
def sentinels(ca: ThrowawayCa) -> Iterator[SentinelSet]:
    with running_sentinels(tls_options(ca), password="of-its-operator") as running:
        for server in running.servers.values():
            server.run("ACL", "SETUSER", "tollgate", *documented_rules("tollgate", "sentinels"))
        for sentinel in running.sentinels.values():
            sentinel.run("ACL", "SETUSER", "watcher", "on", ">seen", "-@all", "+ping", NAMES_THE_PRIMARY)
        yield running


@pytest.fixture(scope="module")
def on_cluster(cluster: RedisCluster, ca: ThrowawayCa, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    url = f"rediss+cluster://tollgate:PASSWORD@{cluster.hosts}?ssl_ca_certs={ca.ca_file}"
    with started(Product(tmp_path_factory.mktemp("cluster") / "data", settings=SETTINGS, redis_url=url)) as workspace:
        yield workspace
        assert "has no permissions" not in workspace.product.log.read_text()


@pytest.fixture(scope="module")
def on_sentinels(
    sentinels: SentinelSet, ca: ThrowawayCa, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workspace]:
    url = (
        f"rediss+sentinel://tollgate:PASSWORD@{sentinels.hosts}/{SERVICE}"
        f"?ssl_ca_certs={ca.ca_file}&sentinel_username=watcher&sentinel_password=seen"
    )
    with started(Product(tmp_path_factory.mktemp("sentinel") / "data", settings=SETTINGS, redis_url=url)) as workspace:
        yield workspace
        assert "has no permissions" not in workspace.product.log.read_text()


@pytest.fixture
async def question_upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(default=answer_question, port=own_port()) as upstream:
        yield upstream


async def customers(stage: Stage) -> tuple[dict[str, str], list[str]]:
    """Keys by entity of groups with a limit per minute, and where in Redis their counters are."""
    await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, stage.upstream.url))
    limits = models(stage.slug, ("REQUEST", "MINUTE", PER_MINUTE), ("TOKEN", "DAY", 10**6))
    keys = {}
    counters = []
    for number in range(GROUPS):
        entity = f"{stage.name}-{number}"
        group = await stage.operator.group(entity, limits)
        keys[entity] = await stage.operator.key(group)
        counters.append(f"tg:{{{group}|{stage.slug}}}")
    return keys, counters


async def call(stage: Stage, key: str) -> int:
    """Call on a connection of its own, so that the kernel spreads calls over the workers."""
    body = {"model": stage.slug, "messages": QUESTION}
    headers = {"Authorization": f"Bearer {key}", "Connection": "close"}
    async with stage.session.post(stage.product.proxy + "/v1/chat/completions", json=body, headers=headers) as answer:
        await answer.read()
        return answer.status


async def called_until_refused(stage: Stage, keys: dict[str, str], meanwhile: Callable[[], None]) -> Statuses:
    """Every customer calls, two at a time, until a limit refuses; what happens `meanwhile` happens in a thread."""
    statuses: Statuses = {entity: Counter() for entity in keys}

    async def caller(entity: str) -> None:
        while not statuses[entity][429]:
            status = await call(stage, keys[entity])
            statuses[entity][status] += 1
            await asyncio.sleep(0.25 if status == 503 else 0.02)

    callers = [asyncio.create_task(caller(entity)) for entity in keys for _ in range(2)]
    await asyncio.to_thread(meanwhile)
    await asyncio.gather(*callers)
    return statuses


async def assert_billed_once(stage: Stage, statuses: Statuses) -> None:
    for entity, counts in statuses.items():
        events = await stage.events_of(entity, counts[200])
        assert len({event["idempotencyKey"] for event in events}) == len(events) == counts[200]


async def used_tokens(stage: Stage, entities: dict[str, str]) -> dict[str, int]:
    """Return the tokens of the running day, by entity."""
    groups = (await stage.operator.call("GET", "/v1/gateway/groups", limit=100))["items"]
    tokens = {}
    for group in groups:
        entity = group["metadata"]["external_entity_id"]
        if entity in entities:
            items = (await stage.operator.call("GET", f"/v1/gateway/groups/{group['id']}/usage"))["items"]
            tokens[entity] = next(
                one["current_usage"] for one in items if (one["type"], one["unit"]) == ("TOKEN", "DAY")
            )
    return tokens


@pytest.mark.skipif(CLUSTER_BINARY is None, reason=MISSING)
async def test_limits_and_bills_are_exact_while_a_cluster_is_rebuilt(
    cluster: RedisCluster, on_cluster: Workspace, session: aiohttp.ClientSession, question_upstream: ScriptedUpstream
) -> None:
    """Slots move with their counters, and a replica takes over in agreement with its primary: nobody notices."""
    stage = stage_of(on_cluster, session, question_upstream, "rebuilt")
    keys, _ = await customers(stage)

    def rebuild() -> None:
        for node in cluster.primaries:
            target = next(other for other in cluster.primaries if other is not node)
            for slot in sorted(slot for slot in cluster.slots_with_keys(node))[:40]:
                cluster.move(slot, target)
        cluster.fail_over(cluster.replicas[1])

    statuses = await called_until_refused(stage, keys, rebuild)
    assert {frozenset(counts) for counts in statuses.values()} == {frozenset({200, 429})}
    assert {entity: counts[200] for entity, counts in statuses.items()} == dict.fromkeys(keys, PER_MINUTE)
    await assert_billed_once(stage, statuses)

    async def settled() -> bool:
        return await used_tokens(stage, keys) == dict.fromkeys(keys, PER_MINUTE * TOKENS)

    await stage.until(settled, "every call is settled where its counters are now")


@pytest.mark.skipif(CLUSTER_BINARY is None, reason=MISSING)
async def test_a_dead_node_refuses_only_its_own_groups_until_it_is_replaced(
    cluster: RedisCluster, on_cluster: Workspace, session: aiohttp.ClientSession, question_upstream: ScriptedUpstream
) -> None:
    stage = stage_of(on_cluster, session, question_upstream, "dead")
    keys, counters = await customers(stage)
    dead = cluster.owner_of(counters[0])
    statuses = await called_until_refused(stage, keys, dead.server.kill)
    await assert_billed_once(stage, statuses)
    refused_entities = {entity for entity, counts in statuses.items() if counts[503]}
    assert 0 < len(refused_entities) < GROUPS
    assert all(counts[200] == PER_MINUTE for entity, counts in statuses.items() if entity not in refused_entities)
    assert {status for counts in statuses.values() for status in counts} == {200, 429, 503}


async def test_a_fail_over_by_sentinels_is_followed_by_every_part(
    sentinels: SentinelSet,
    on_sentinels: Workspace,
    session: aiohttp.ClientSession,
    question_upstream: ScriptedUpstream,
) -> None:
    stage = stage_of(on_sentinels, session, question_upstream, "sentinels")
    keys, _ = await customers(stage)
    statuses = await called_until_refused(stage, keys, sentinels.primary.kill)
    assert {status for counts in statuses.values() for status in counts} == {200, 429, 503}
    await assert_billed_once(stage, statuses)
    entity = "after-the-fail-over"
    group = await stage.operator.group(entity, models(stage.slug, ("REQUEST", "MINUTE", PER_MINUTE)))
    statuses = await called_until_refused(stage, {entity: await stage.operator.key(group)}, lambda: None)
    assert statuses[entity][200] == PER_MINUTE
