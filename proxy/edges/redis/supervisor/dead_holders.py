"""Gives back what a dead async worker of this machine held, long before its leases end. Runs in the supervisor."""

import asyncio
import logging
import time

from proxy.async_requests.queues import LEASE_S, QueueUnavailableError
from proxy.edges.redis.async_queue.client import QueueClient, keys_of
from proxy.edges.redis.async_queue.holdings import GIVE_BACK_MOST

LATE_COMMANDS_S = 2.0
"""Seconds until a dead worker's last command has run. What that command took is given back then."""
RETRY_S = 0.5
"""Time between two tries while the queue does not answer."""
log = logging.getLogger(__name__)


class DeadHolders:
    """Gives back what holders named to `died` held, while `run` runs. What cannot be given back ends with its lease."""

    def __init__(self, client: QueueClient) -> None:
        self._client = client
        self._dead: asyncio.Queue[str] = asyncio.Queue()

    def died(self, holder: str) -> None:
        """Note that the process with this incarnation has ended."""
        self._dead.put_nowait(holder)

    async def run(self) -> None:
        """Give back what dead holders held, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._give_back_twice(await self._dead.get()))

    async def _give_back_twice(self, holder: str) -> None:
        await self._give_back(holder)
        await asyncio.sleep(LATE_COMMANDS_S)
        await self._give_back(holder)

    async def _give_back(self, holder: str) -> None:
        give_up_at = time.monotonic() + LEASE_S
        while True:
            if await self._tried(holder):
                return
            if time.monotonic() >= give_up_at:
                log.warning("Redis was away for %g s; what the dead async worker %s ran is taken back as its leases"
                            " end. Check Redis.", LEASE_S, holder)  # fmt: skip
                return
            await asyncio.sleep(RETRY_S)

    async def _tried(self, holder: str) -> bool:
        try:
            for workspace_id in await self._client.index.all():
                await self._give_back_in(workspace_id, holder)
        except QueueUnavailableError:
            return False
        return True

    async def _give_back_in(self, workspace_id: str, holder: str) -> None:
        count = GIVE_BACK_MOST
        while count == GIVE_BACK_MOST:
            count = await self._client.commands.run("give_back", keys_of(workspace_id), holder, GIVE_BACK_MOST, 0)
