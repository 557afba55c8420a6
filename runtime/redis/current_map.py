"""The slot map as it was last found. It is found again after doubts, and every few seconds while it is used.

That is done in a task of its own, so that no caller's short deadline cuts it off, and at most every `PAUSE_S`.
"""

import asyncio
import time

from redis.exceptions import RedisError

from runtime.background import cancelled
from runtime.redis.discovery import Discovery
from runtime.redis.node_clients import NodeClients
from runtime.redis.slot_map import SlotMap
from runtime.redis.slots import Place

PAUSE_S = 0.5
MAX_AGE_S = 10.0


class CurrentMap:
    """One per client. `discovery` None: the Redis is one server, `first_map`, for ever."""

    def __init__(self, clients: NodeClients, discovery: Discovery | None, first_map: SlotMap | None) -> None:
        self._clients = clients
        self._discovery = discovery
        self._map = first_map
        self._error: RedisError | None = None
        self._asked_at_s = float("-inf")
        self._finding: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._primaries = frozenset(first_map.primaries if first_map is not None else ())

    async def get(self) -> SlotMap:
        """Return the map at once, unless none was found yet. Raises redis-py's error if none can be found."""
        if time.monotonic() - self._asked_at_s > MAX_AGE_S:
            self.doubt()
        while self._map is None:
            self.doubt()
            assert self._finding is not None
            await asyncio.shield(self._finding)
            if self._error is not None:
                raise self._error
        return self._map

    def has_primary(self, host: Place) -> bool:
        """Return whether the server holds data, as far as is known."""
        return host in self._primaries

    async def find_anew(self) -> None:
        """Find it again from now on. Raises redis-py's error if none can be found."""
        if self._finding is not None:
            await asyncio.shield(self._finding)
        self.doubt()
        if self._finding is not None:
            await asyncio.shield(self._finding)
        if self._error is not None:
            raise self._error

    async def changed(self) -> None:
        """Wait until other servers hold the data than now."""
        await self._changed.wait()

    def doubt(self) -> None:
        """Find it again soon: something went wrong that a wrong map would explain."""
        if self._discovery is not None and (self._finding is None or self._finding.done()):
            self._finding = asyncio.create_task(self._find(self._discovery))

    def move(self, slot: int, owner: Place) -> None:
        """A server said that another one has this slot."""
        if self._map is not None:
            self._map.move(slot, owner)
            self._note_primaries(self._map)
        self.doubt()

    async def close(self) -> None:
        if self._finding is not None:
            await cancelled(self._finding)
        if self._discovery is not None:
            await self._discovery.close()

    async def _find(self, discovery: Discovery) -> None:
        """Find the map. Never raises."""
        await asyncio.sleep(self._asked_at_s + PAUSE_S - time.monotonic())
        self._asked_at_s = time.monotonic()
        if self._map is not None:  # by now, commands to servers that the last map left out have ended
            await self._clients.close(but=self._map.nodes)
        try:
            slot_map = await discovery.find(self._map)
        except RedisError as error:
            self._error = error
            return
        self._map = slot_map
        self._error = None
        self._note_primaries(slot_map)

    def _note_primaries(self, slot_map: SlotMap) -> None:
        before = self._primaries
        self._primaries = frozenset(slot_map.primaries)
        if before not in (frozenset(), self._primaries):
            self._changed.set()
            self._changed = asyncio.Event()
