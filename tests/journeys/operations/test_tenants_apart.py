"""One tenant does what it can to a worker; the other one's calls are served by the whole product."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.journeys.conftest import GatedUpstream, Stage, Workspace, stage_of
from tests.journeys.product import Desk, Product

SETTINGS = {"TOLLGATE_MAX_IN_FLIGHT": "100", "TOLLGATE_MAX_PARKED": "20"}


@pytest.fixture
async def small(
    tmp_path: Path, session: aiohttp.ClientSession, upstream: GatedUpstream
) -> AsyncIterator[tuple[Stage, str]]:
    """A product of one worker with room for 100 calls, one workspace, and the key of another workspace."""
    product = Product(tmp_path / "data", workers=1, settings=SETTINGS)
    try:
        product.start()
        stage = stage_of(Workspace(product), session, upstream, "own")
        made = product.command("workspace", "create", "greedy", "--prefix", "greedy")
        desk = Desk(session, product, made["api_key"])
        model = await desk.model("asleep", upstream.url)
        path = f"/v1/models/{model}/deployments"
        [deployment] = (await desk.call("GET", path))["items"]
        await desk.call("PUT", f"{path}/{deployment['id']}/replicas", {"replicas": []})
        await desk.endpoint("greedy/asleep", model)
        yield stage, await desk.key(await desk.group("greedy", [{"slug": "greedy/asleep"}]))
    finally:
        product.kill()


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


@pytest.mark.parametrize(
    ("count", "declared", "body"),
    [
        (12, 90_000_000, b"{"),
        (200, 90_000_000, b"{"),
        (60, 0, b'{"model": "greedy/asleep", "messages": []}'),
    ],
    ids=["12 large bodies", "200 large bodies", "60 parked calls"],
)
async def test_what_one_tenant_holds_does_not_refuse_the_other(
    small: tuple[Stage, str], count: int, declared: int, body: bytes
) -> None:
    stage, greedy = small
    key = await stage.key_without_limits()
    writers = await open_calls(stage, count, request(greedy, declared or len(body), body))

    async def full() -> Any:
        held = await metric(stage, "tollgate_inflight_requests")
        return held + await metric(stage, "tollgate_shed_requests_total") >= count

    await stage.until(full, "the worker has met all of them")
    assert await metric(stage, "tollgate_inflight_requests") <= 75
    for _ in range(5):
        assert (await stage.ask(key)).model == stage.slug
    for writer in writers:
        writer.transport.abort()
