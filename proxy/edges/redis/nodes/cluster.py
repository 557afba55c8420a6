"""A Redis Cluster: a slot map, and a client for each primary. Each client has its own deadlines and its own breaker.

The map is read from any node: when a slot has moved, while a primary does not serve, and now and then. A command that
comes to the wrong node is sent on; nothing of it has run there.

See docs/reference/limits.md#redis-topologies.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import Any

from proxy.edges.redis.nodes.connection import RedisCommand, encode
from proxy.edges.redis.nodes.dialing import Dialer
from proxy.edges.redis.nodes.pipelined_client import RedisClient, RedisClientOptions
from proxy.edges.redis.nodes.redis_node import RedisNode
from proxy.edges.redis.nodes.single import FixedServer
from runtime.background import cancelled, is_set_within
from runtime.backoff import jittered_s
from runtime.redis.slots import SLOTS, Place, redirect, slot_ranges
from runtime.redis.url import RedisUrl

_log = logging.getLogger(__name__)
_START_S = 0.05
"""The pause between two tries to read the first map."""
_SOONEST_S = 0.5
"""The least time between two readings. While slots move or a primary is away, all workers of all machines read it."""
_CALM_S = 30.0
_UNNAMED_S = 60.0
"""The time for which a node is kept that no map and no redirect names: the target of a moving slot may be in none."""
_ASKING = encode(b"ASKING")


class _Member(RedisNode):
    """A node of the cluster. `opened`: done when it was connected for the first time."""

    __slots__ = ("named_at", "opened", "place")

    def __init__(self, place: Place, client: RedisClient) -> None:
        super().__init__(client)
        self.place = place
        self.named_at = 0.0
        self.opened = client.open()


class ClusterNodes:
    """The `RedisNodes` of a Redis Cluster."""

    def __init__(self, url: RedisUrl, options: RedisClientOptions) -> None:
        self._login = url.login
        self._seeds = [Place(seed.host, seed.port) for seed in url.servers]
        self._options = options
        self._dialer = Dialer(url.login.tls)
        self._members: dict[Place, _Member] = {}
        self._by_slot: list[_Member] = []
        self._owners: set[_Member] = set()
        self._stale = asyncio.Event()
        self._mapped = asyncio.Event()
        self._moved = False
        """A redirect has changed the map since it was read."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._flush_scheduled = False
        self._before_flush: Callable[[], None] = lambda: None
        self._on_recovered: Callable[[], None] = lambda: None
        self._logged_error = ""

    def hook(self, before_flush: Callable[[], None], on_recovered: Callable[[], None]) -> None:
        self._before_flush = before_flush
        self._on_recovered = on_recovered

    async def start(self) -> None:
        """Connect. Until the first map is read, the first host of the URL stands for every node: it sends redirects."""
        self._loop = asyncio.get_running_loop()
        self._by_slot = [self._member(self._seeds[0])] * SLOTS
        self._start_task(self._keep_map())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.connect_timeout_s):
                await self._mapped.wait()
                await asyncio.wait([owner.opened for owner in self._owners])

    async def close(self) -> None:
        for task in list(self._tasks):
            await cancelled(task)
        await asyncio.gather(*(member.client.close() for member in self._members.values()))

    def schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Enqueue a tick's commands. Each client sends its own in the next turn of the event loop, in one write."""
        self._flush_scheduled = False
        self._before_flush()

    def of(self, slot: int) -> RedisNode:
        return self._by_slot[slot]

    @property
    def any_serves(self) -> bool:
        return any(owner.serves for owner in self._owners)

    def redirected(self, slot: int, error: str) -> RedisNode | None:
        redirection = redirect(error, self._by_slot[slot].place)
        if redirection is None:
            if error.startswith("CLUSTERDOWN"):
                self._stale.set()
            return None
        member = self._member(redirection.target)
        if redirection.lasts:
            self._by_slot[redirection.slot] = member
            self._owners.add(member)
            self._moved = True
            self._stale.set()
        else:
            member.client.enqueue(RedisCommand(_ASKING, lambda _command, _reply: None))
        return member

    def _member(self, place: Place) -> _Member:
        """Return the node at a place that a map, a redirect or the URL has just named."""
        member = self._members.get(place)
        if member is None:
            server = FixedServer(self._login.at(*place), self._dialer, f"Redis at {place.host}:{place.port}")
            member = self._members[place] = _Member(place, RedisClient(server, self._options))
            self._hook(member)
        member.named_at = time.monotonic()
        return member

    def _hook(self, member: _Member) -> None:
        def recovered() -> None:
            member.clock.forget()
            self._stale.set()
            self._on_recovered()

        def trouble() -> None:
            if member in self._owners:
                self._stale.set()

        member.client.hook(None, recovered, trouble)

    async def _keep_map(self) -> None:
        while True:
            if await self._read_map():
                self._mapped.set()
            else:
                for seed in self._seeds:
                    self._member(seed)
            await asyncio.sleep(jittered_s(_SOONEST_S if self._mapped.is_set() else _START_S))
            if self._mapped.is_set() and all(owner.serves for owner in self._owners):
                await is_set_within(self._stale, jittered_s(_CALM_S))
            self._stale.clear()

    async def _read_map(self) -> bool:
        """Ask the connected nodes, until one answers."""
        connected = [member for member in self._members.values() if member.client.connected]
        random.shuffle(connected)
        for member in connected:
            reply = await member.client.execute(b"CLUSTER", b"SLOTS")
            if isinstance(reply, list) and reply:
                self._apply(reply, member.place)
                self._logged_error = ""
                return True
            self._log_once(member.place, reply)
        return False

    def _apply(self, reply: list[Any], source: Place) -> None:
        """Apply a map that `source` sent. Slots that it leaves out keep their node, whose error names the trouble."""
        by_slot = list(self._by_slot)
        for first, last, (primary, *_) in slot_ranges(reply, source):
            by_slot[first : last + 1] = [self._member(primary)] * (last + 1 - first)
        has_changed = self._moved or by_slot != self._by_slot
        self._by_slot = by_slot
        self._owners = set(by_slot)
        self._moved = False
        self._retire_unnamed()
        if has_changed:
            self._on_recovered()

    def _retire_unnamed(self) -> None:
        oldest = time.monotonic() - _UNNAMED_S
        for place, member in list(self._members.items()):
            if member not in self._owners and member.named_at < oldest:
                del self._members[place]
                self._start_task(member.client.close())

    def _start_task(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _log_once(self, place: Place, reply: Any) -> None:
        """Log an error once per cause, not once per attempt. None: no reply, which the client has logged."""
        error = "it has no slots" if isinstance(reply, list) else str(reply or "")
        if error and error != self._logged_error:
            self._logged_error = error
            _log.error(
                "Redis at %s:%d does not tell which node has which slots (%s). Check that it is a node of a cluster, "
                "and that the ACL user may run CLUSTER SLOTS.", place.host, place.port, error,
            )  # fmt: skip
