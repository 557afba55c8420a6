"""A deployment that is scaled to zero, its hook, a crowd of callers, and real model servers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.journeys.conftest import Stage
from tests.journeys.product import models
from tests.journeys.replicas.crowd import GROUPS, MAX_CONCURRENCY, Crowd, WakeHook
from tests.journeys.replicas.model_servers import ModelServers

HEALTH = {"path": "/health", "interval_s": 0.5, "timeout_s": 1, "healthy_after": 1, "unhealthy_after": 2}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[ModelServers]:
    servers = ModelServers(tmp_path)
    yield servers
    servers.stop()


@pytest.fixture
async def hook() -> AsyncIterator[WakeHook]:
    hook = WakeHook()
    await hook.start()
    yield hook
    await hook.stop()


@pytest.fixture
async def crowd(stage: Stage, hook: WakeHook) -> AsyncIterator[Crowd]:
    """A slug whose deployment is scaled to zero, and a key for each group."""
    operator = stage.operator
    model = (await operator.call("POST", "/v1/models", {"name": stage.name}))["id"]
    settings = {
        "name": "d",
        "wake_url": hook.url,
        "health": HEALTH,
        "max_concurrency": MAX_CONCURRENCY,
        "max_queued": 400,
    }
    deployment = (await operator.call("POST", f"/v1/models/{model}/deployments", settings))["id"]
    path = f"/v1/models/{model}/deployments/{deployment}"
    await operator.call("PUT", f"/v1/models/{model}/environments/production", {"deployment_id": deployment})
    await operator.call("PUT", f"{path}/replicas", {"replicas": []})
    await operator.endpoint(stage.slug, model)
    crowd = Crowd(stage, f"/models/{model}", path)
    for group in GROUPS:
        crowd.keys[group] = await operator.key(await operator.group(f"{stage.name}-{group}", models(stage.slug)))
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=90)
    ) as session:
        stage.session = session
        yield crowd
        for task in crowd.tasks.values():
            task.cancel()
        await asyncio.gather(*crowd.tasks.values(), return_exceptions=True)
