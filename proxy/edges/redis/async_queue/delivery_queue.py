"""The queue for workers that deliver results to webhooks."""

from collections.abc import Collection

from proxy.async_requests.endings import ANSWER_LOST
from proxy.async_requests.requests import Delivery
from proxy.edges.redis.async_queue import records
from proxy.edges.redis.async_queue.client import QueueClient, keys_of
from proxy.edges.redis.async_queue.leases import by_workspace
from proxy.edges.redis.async_queue.repeats import Write

_CHUNK_BYTES = 128 << 10
"""The size of each chunk of an answer, except the last one."""


class RedisDeliveryQueue:
    """Implements `DeliveryQueue`."""

    def __init__(self, client: QueueClient) -> None:
        self._client = client

    async def next_delivery(self, workspace_id: str, holder: str) -> Delivery | None:
        holdings = self._client.holdings
        if not await self._client.repeats.may_decide() or not holdings.may_begin(workspace_id):
            return None
        async with holdings.beginning(workspace_id, holder):
            reply = await self._client.commands.run("next_delivery", keys_of(workspace_id), holder)
        if reply is None:
            return None
        delivery = records.delivery_of(workspace_id, holder, reply)
        holdings.hold(workspace_id, delivery.request_id)
        return delivery

    async def renew_deliveries(self, deliveries: Collection[Delivery]) -> Collection[Delivery]:
        lost_deliveries: list[Delivery] = []
        for workspace_id, batch in by_workspace(deliveries):
            arguments = [argument for one in batch for argument in records.delivery_arguments(one)]
            reply = await self._client.commands.run("renew_deliveries", keys_of(workspace_id), *arguments)
            lost_here = [batch[place - 1] for place in reply]
            self._client.holdings.release(workspace_id, [one.request_id for one in lost_here])
            lost_deliveries += lost_here
        return lost_deliveries

    async def chunk(self, delivery: Delivery, number: int) -> bytes | None:
        if number:  # small answers wait for nobody
            await self._client.pace.wait(_CHUNK_BYTES)
        key = f"{keys_of(delivery.deployment.workspace_id)}a:{delivery.request_id}"
        content: bytes | None = await self._client.commands.call(key, lambda redis: redis.hget(key, str(number)))
        return content

    async def answer_lost(self, delivery: Delivery) -> bool:
        arguments = *records.delivery_arguments(delivery), ANSWER_LOST.code, ANSWER_LOST.message
        key = keys_of(delivery.deployment.workspace_id)
        await self._client.repeats.quiet_is_over()
        count: int = await self._client.commands.run("answer_lost", key, *arguments)
        return count > 0

    async def delivered(self, delivery: Delivery) -> bool:
        return await self._end(delivery, "deliver", 0)

    async def undelivered(self, delivery: Delivery, again_in_ms: int | None) -> bool:
        return await self._end(delivery, "give up" if again_in_ms is None else "again", again_in_ms or 0)

    async def _end(self, delivery: Delivery, what: str, again_in_ms: int) -> bool:
        key = keys_of(delivery.deployment.workspace_id)
        arguments = *records.delivery_arguments(delivery), what, again_in_ms
        write = Write("end_delivery", key, delivery.request_id, (0, *arguments), (1, *arguments))
        count: int = await self._client.repeats.write(write, lambda reply: reply == 1)
        self._client.holdings.release(delivery.deployment.workspace_id, [delivery.request_id])
        return count > 0
