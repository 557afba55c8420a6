"""The queue as metrics use it."""

import asyncio
from collections.abc import Sequence

from proxy.async_requests.requests import PRIORITIES, DeploymentFigures
from proxy.edges.redis.async_queue.client import QueueClient, keys_of
from proxy.edges.redis.async_queue.records import deployment_of

_BATCH = 50
"""Deployments of one script: about 2 ms of Redis' time."""
_FIGURES = len(PRIORITIES) + 2


class RedisQueueOverview:
    """Implements `QueueOverview`."""

    def __init__(self, client: QueueClient) -> None:
        self._client = client

    async def overview(self) -> Sequence[DeploymentFigures]:
        rows: list[DeploymentFigures] = []
        for workspace_id in await self._client.index.all():
            fields = await self._deployments(workspace_id)
            for start in range(0, len(fields), _BATCH):
                rows += await self._figures(workspace_id, fields[start : start + _BATCH])
                await asyncio.sleep(0)
        return rows

    async def _deployments(self, workspace_id: str) -> Sequence[bytes]:
        key = keys_of(workspace_id) + "deployments"
        fields: Sequence[bytes] = await self._client.commands.call(key, lambda redis: redis.hkeys(key))
        return fields

    async def _figures(self, workspace_id: str, fields: Sequence[bytes]) -> list[DeploymentFigures]:
        deployments = [deployment_of(workspace_id, field) for field in fields]
        ids = (deployment.deployment_id for deployment in deployments)
        now_ms, *figures = await self._client.commands.run("overview", keys_of(workspace_id), *ids)
        rows = []
        for place, deployment in enumerate(deployments):
            *queued, in_progress, oldest = figures[place * _FIGURES : (place + 1) * _FIGURES]
            age_s = (now_ms - oldest) / 1000 if oldest else None
            rows.append(DeploymentFigures(deployment, dict(zip(PRIORITIES, queued, strict=True)), in_progress, age_s))
        return rows
