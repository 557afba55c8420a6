"""One tenant uses as much of a worker as it may; the other tenant's calls are still served."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.journeys.conftest import Stage, Workspace, stage_of, started
from tests.journeys.product import METRICS_TOKEN, OperatorClient, Product
from tests.upstream import ScriptedUpstream

SETTINGS = {"TOLLGATE_MAX_IN_FLIGHT": "100", "TOLLGATE_MAX_PARKED": "20"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A product of one worker with room for 100 calls."""
    product = Product(tmp_path_factory.mktemp("small") / "data", workers=1, settings=SETTINGS)
    with started(product) as workspace:
        yield workspace


@pytest.fixture(scope="module")
def greedy(small: Workspace) -> str:
    """The key of another workspace's operator."""
    created = small.product.command("workspace", "create", "greedy", "--prefix", "greedy")
    return str(created["api_key"])


@pytest.fixture
async def parked(
    small: Workspace, greedy: str, session: aiohttp.ClientSession, upstream: ScriptedUpstream, numbers: Iterator[int]
) -> tuple[Stage, str, str]:
    """A stage, and the slug and a key of the other workspace, whose calls are parked."""
    stage = stage_of(small, session, upstream, f"tenant-{next(numbers)}")
    operator = OperatorClient(session, small.product, greedy)
    slug = f"greedy/{stage.name}"
    model = await operator.model(stage.name, upstream.url)
    path = f"/v1/models/{model}/deployments"
    [deployment] = (await operator.call("GET", path))["items"]
    await operator.call("PUT", f"{path}/{deployment['id']}/replicas", {"replicas": []})
    await operator.endpoint(slug, model)
    return stage, slug, await operator.key(await operator.group(stage.name, [{"slug": slug}]))


async def metric(stage: Stage, name: str) -> float:
    async with stage.session.get(stage.product.admin + "/metrics") as answer:
        lines = [line for line in (await answer.text()).splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def open_calls(stage: Stage, count: int, data: bytes) -> list[asyncio.StreamWriter]:
    at = urlsplit(stage.product.proxy)
    writers = []
    for _ in range(count):
        _, writer = await asyncio.open_connection(at.hostname, at.port)
        writer.write(data)
        writers.append(writer)
    return writers


def request(key: str, declared: int, body: bytes) -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: us\r\nAuthorization: Bearer {key}\r\n"
    return f"{head}Content-Length: {declared}\r\n\r\n".encode() + body


async def workspaces_shown(stage: Stage, credential: str) -> set[str]:
    """The workspaces of the series that a reader on another machine sees; "" for those without one."""
    headers = {"Authorization": f"Bearer {credential}", "X-Forwarded-For": "198.51.100.7"}
    async with stage.session.get(stage.product.admin + "/metrics", headers=headers) as answer:
        assert answer.status == 200
        families = text_string_to_metric_families(await answer.text())
    return {sample.labels.get("workspace", "") for family in families for sample in family.samples}


async def test_tenant_reads_no_series_of_another(parked: tuple[Stage, str, str], greedy: str) -> None:
    stage, _, caller = parked
    assert (await stage.ask(await stage.key_without_limits())).model == stage.slug
    headers = {"Authorization": f"Bearer {caller}", "Content-Type": "application/json"}
    assert (await stage.post(headers, b'{"model": "acme/foreign", "messages": []}'))[0] >= 400
    operator = OperatorClient(stage.session, stage.product, greedy)
    created = await operator.call("POST", "/v1/api_keys", {"type": "WORKSPACE_EXPORT_METRICS"})
    shown_to_the_operator = await workspaces_shown(stage, METRICS_TOKEN)
    shown_to_the_tenant = await workspaces_shown(stage, created["api_key"])
    assert len(shown_to_the_operator) >= 3
    assert len(shown_to_the_tenant) == 1
    assert "" not in shown_to_the_tenant


LARGE = (90_000_000, "{")
PARKED = (0, '{"model": "SLUG", "messages": []}')


@pytest.mark.parametrize(
    ("count", "call"),
    [(12, LARGE), (200, LARGE), (60, PARKED)],
    ids=["12 large bodies", "200 large bodies", "60 parked calls"],
)
async def test_tenant_that_fills_its_share_does_not_block_another(
    parked: tuple[Stage, str, str], count: int, call: tuple[int, str]
) -> None:
    stage, slug, greedy = parked
    declared = call[0]
    body = call[1].replace("SLUG", slug).encode()
    key = await stage.key_without_limits()

    async def empty() -> bool:
        return await metric(stage, "tollgate_inflight_requests") == 0

    await stage.until(empty, "no call is under way")
    shed = await metric(stage, "tollgate_shed_requests_total")
    writers = await open_calls(stage, count, request(greedy, declared or len(body), body))

    async def full() -> Any:
        in_flight = await metric(stage, "tollgate_inflight_requests")
        return in_flight + await metric(stage, "tollgate_shed_requests_total") - shed >= count

    await stage.until(full, "the worker has met all of them")
    assert await metric(stage, "tollgate_inflight_requests") <= 75
    for _ in range(5):
        assert (await stage.ask(key)).model == stage.slug
    for writer in writers:
        writer.transport.abort()


class Holder:
    """Holds connections to a port, each with the same bytes. A closed one is opened again after a second."""

    def __init__(self, url: str, connections: int, data: bytes) -> None:
        at = urlsplit(url)
        self._place = (at.hostname, at.port)
        self._data = data
        self.was_closed = asyncio.Event()
        """The port has closed one: all its places were taken."""
        self._tasks = [asyncio.create_task(self._hold()) for _ in range(connections)]

    async def _hold(self) -> None:
        while True:
            reader, writer = await asyncio.open_connection(*self._place)
            writer.write(self._data)
            try:
                with contextlib.suppress(ConnectionError):
                    await reader.read()
                self.was_closed.set()
            finally:
                writer.transport.abort()
            await asyncio.sleep(1.0)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        assert {type(end) for end in ends} == {asyncio.CancelledError}


HALVES = {"heads": b"", "bodies": b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"}


@pytest.mark.parametrize("rest", HALVES.values(), ids=HALVES)
async def test_others_are_served_while_half_requests_of_a_tenant_hold_control_and_the_admin_port(
    small: Workspace,
    greedy: str,
    session: aiohttp.ClientSession,
    upstream: ScriptedUpstream,
    numbers: Iterator[int],
    rest: bytes,
) -> None:
    product = small.product
    head = f"POST /v1/gateway/groups HTTP/1.1\r\nHost: us\r\nAuthorization: Bearer {greedy}\r\n"
    holders = [Holder(product.control, 560, head.encode() + rest), Holder(product.admin, 160, head.encode() + rest)]
    for holder in holders:
        await holder.was_closed.wait()
    for _ in range(5):
        stage = stage_of(small, session, upstream, f"beset-{next(numbers)}")
        assert (await stage.ask(await stage.key_without_limits())).model == stage.slug
        async with session.get(product.admin + "/readyz") as answer:
            assert answer.status == 200, await answer.text()
        assert await metric(stage, "tollgate_inflight_requests") == 0
    for holder in holders:
        await holder.close()
