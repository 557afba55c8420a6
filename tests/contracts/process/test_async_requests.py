"""Asynchronous requests at real workers: what the settings say of them, and that no worker needs their queue."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from policy.credentials import KeyKind, digest_of
from policy.deployments import ACTIVE, Deployment
from policy.snapshot import KeyRow, ModelRow
from tests.contracts.process.test_supervisor import World, a_world
from tests.redis_server import REDIS_BINARIES, private_redis

pytestmark = pytest.mark.skipif(not REDIS_BINARIES, reason="no redis-server: apt-get install redis-server")

KEY = "tg_workspacekey.0123456789abcdefghijklmnopqrst"
SUBMIT = "/models/m/production/async_predict"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    with private_redis() as redis:
        async with a_world(tmp_path, redis) as world:
            row = KeyRow(digest_of(KEY), KEY.partition(".")[0], KeyKind.WORKSPACE_INVOKE, "ws", None)
            world.control.put("key", digest_of(KEY), row.to_wire())
            model = ModelRow("m", "ws", {"d": Deployment("d", ACTIVE, ("http://127.0.0.1:9",))}, {"production": "d"})
            world.control.put("model", "m", model.to_wire())
            world.proxy.environ["TOLLGATE_ASYNC_WORKERS"] = "0"
            yield world


async def ask(world: World, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Call on a connection of its own, so at any worker. Call again if a busy machine answers the limits too late."""
    url = f"http://127.0.0.1:{world.proxy.port}{path}"
    headers = {"authorization": f"Bearer {KEY}"}
    while True:
        async with aiohttp.request(method, url, headers=headers, json=body) as answer:
            content = await answer.json()
        if content.get("error_code") != "LIMITS_UNAVAILABLE":
            return answer.status, content


async def test_every_worker_knows_what_one_has_queued_and_the_settings_bound_it(world: World) -> None:
    await world.proxy.start(
        workers=2, TOLLGATE_ASYNC_MAX_BODY_BYTES="100", TOLLGATE_PLATFORM_HOSTS="ours.example.com",
        TOLLGATE_ASYNC_MAX_QUEUED_BYTES="60",
    )  # fmt: skip
    status, content = await ask(world, "POST", SUBMIT, {"model_input": "x" * 40})
    assert status == 201
    for _ in range(6):
        state = await ask(world, "GET", f"/async_request/{content['request_id']}")
        assert (state[0], state[1]["status"]) == (200, "QUEUED")
    assert (await ask(world, "POST", SUBMIT, {"model_input": "x" * 40}))[1]["error_code"] == "ASYNC_QUEUE_FULL"
    assert (await ask(world, "POST", SUBMIT, {"model_input": "x" * 90}))[0] == 413
    status, refusal = await ask(
        world, "POST", SUBMIT, {"model_input": 1, "webhook_endpoint": "https://a.ours.example.com"}
    )
    assert (status, "webhook_endpoint" in refusal["error"]) == (400, True)


@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [("TOLLGATE_ASYNC", "off", "ASYNC_NOT_SET_UP"), ("TOLLGATE_ASYNC_REDIS_URL", "unix:///none", "ASYNC_UNAVAILABLE")],
)
async def test_worker_without_a_queue_serves_all_other_calls(world: World, setting: str, value: str, code: str) -> None:
    world.proxy.environ[setting] = value
    await world.proxy.start()
    for method, path, body in (
        ("POST", SUBMIT, {"model_input": 1}),
        ("GET", "/async_request/areq_01JABCDEFGHJKMNPQRSTVWXYZ0", None),
        ("DELETE", "/async_request/areq_01JABCDEFGHJKMNPQRSTVWXYZ0", None),
        ("GET", "/models/m/production/async_queue_status", None),
    ):
        status, refusal = await ask(world, method, path, body)
        assert (status, refusal["error_code"]) == (503, code)
    assert (await world.proxy.call())[0] == 200
    assert await world.proxy.stop() == 0
