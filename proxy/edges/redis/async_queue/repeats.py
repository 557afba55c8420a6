"""Sends again what a crash or a change of primary may have lost: the last writes that Redis acknowledged.

Each process remembers its writes of `REMEMBERED_S`, and notices a lost connection at once, because it holds a
subscription, and other primaries when it asks for them. When Redis serves again, those writes go first; all may be
repeated. For `QUIET_S` nothing new is decided (no start, expiry or cancel), as others may have to repeat theirs.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from proxy.async_requests.queues import QueueUnavailableError
from proxy.edges.redis.async_queue.commands import QueueCommands
from proxy.edges.redis.async_queue.inputs import INCOMPLETE
from proxy.edges.redis.async_queue.workspaces import WorkspaceIndex
from runtime.background import cancelled
from runtime.redis.script import Argument

REMEMBERED_S = 10.0
"""The age up to which writes are remembered. A replaced primary is noticed earlier: sentinels demote it in some 8 s."""
REMEMBERED_BYTES = 32 << 20
TICK_S = 2.0
"""The interval at which old writes are dropped. While some remain, it is also checked which servers are primaries."""
QUIET_S = 3.0
"""The time after a loss in which nothing new is decided. Any process reconnects and renews its leases within it."""
PATIENCE_S = 2.0
"""The longest time for which a write waits for the connection before it fails."""
UNKNOWN_FOR_S = 10.0
"""The time for which a write to an unknown request is repeated: another process has to submit that request again."""
UNKNOWN = -1
"""The reply of a script that changes a request, if there is no such request."""
_AGAIN_S = 0.2
_AT_ONCE = 16
"""Requests whose writes are repeated at the same time."""
_CHANNEL = "tga:watch"
"""The channel whose subscription shows losses. Nobody publishes on it."""
_LATER = (None, UNKNOWN, INCOMPLETE)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Write:
    """A call of a script that changes a request. `repeated`: its arguments when it is sent again."""

    script: str
    key: str
    request_id: str
    arguments: Sequence[Argument]
    repeated: Sequence[Argument]
    acknowledged_at: float = 0.0
    supply: Callable[[], Awaitable[None]] | None = None
    """Stores what the script needs, when it replies that this is incomplete."""
    supply_bytes: int = 0

    @property
    def size(self) -> int:
        return self.supply_bytes + sum(len(argument) for argument in self.repeated if not isinstance(argument, int))


class Repeats:
    """One per process. Every write goes through `write`."""

    def __init__(self, commands: QueueCommands, index: WorkspaceIndex) -> None:
        self._commands = commands
        self._index = index
        self._remembered: deque[Write] = deque()
        self._bytes = 0
        self._serves = asyncio.Event()
        self._lost_at: float | None = None
        self._quiet_until = float("-inf")
        self._watching: asyncio.Task[None] | None = None
        self._repeating: asyncio.Task[None] | None = None
        self._forgetting: asyncio.Task[None] | None = None

    async def close(self) -> None:
        for task in (self._watching, self._repeating, self._forgetting):
            if task is not None:
                await cancelled(task)

    async def write(self, write: Write, is_new: Callable[[Any], bool]) -> Any:
        """Run the write, and remember it if `is_new` accepts its reply. Writes that must be repeated go first.

        After the reply a replica has the write, if there is one. `INCOMPLETE` if Redis has lost what the write needs.
        """
        await self.ready()
        reply = await _supplied(write, partial(self._commands.write, write.script, write.key, *write.arguments))
        if is_new(reply):
            self._remember(write)
        return reply

    async def store_again(self, key: str, request_id: str) -> None:
        """Store the remembered chunks of a request's answer again."""
        for write in list(self._remembered):
            if (write.script, write.key, write.request_id) == ("store", key, request_id):
                await self._commands.run(write.script, key, *write.repeated)

    async def ready(self) -> None:
        """Wait until Redis serves and has all that this process remembers. Raises `QueueUnavailableError`."""
        if self._watching is None or self._watching.done():
            self._watching = _task(self._watch())
            self._forgetting = _task(self._forget())
        if not self._serves.is_set():
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._serves.wait()
            except TimeoutError:
                raise QueueUnavailableError("no subscription") from None

    async def may_decide(self) -> bool:
        """Return whether something new may be decided: not within `QUIET_S` after a loss of Redis."""
        await self.ready()
        return time.monotonic() >= self._quiet_until

    async def quiet_is_over(self) -> None:
        await self.ready()
        await asyncio.sleep(self._quiet_until - time.monotonic())

    async def _watch(self) -> None:
        async for _ in self._commands.watched(_CHANNEL, self._on_lost):
            self._repeating = _task(self._repeat())

    def _on_lost(self, error: Exception) -> None:
        """Stop writing: a subscription failed, or could not be made."""
        self._commands.report(error)
        if self._repeating is not None:
            self._repeating.cancel()
        if self._serves.is_set():
            self._lost_at = time.monotonic()
            self._serves.clear()

    async def _repeat(self) -> None:
        """Send the remembered writes again after a loss. Runs at each subscription."""
        if self._lost_at is not None:
            since = self._lost_at - REMEMBERED_S
            unknown = await self._send([write for write in self._remembered if write.acknowledged_at >= since])
            now = time.monotonic()
            self._remembered = deque(replace(write, acknowledged_at=now) for write in self._remembered)
            self._quiet_until = now + QUIET_S
            self._lost_at = None
            self._serves.set()
            await self._send_unknown(unknown)
        self._serves.set()
        await self._commands.check_rights()

    async def _send_unknown(self, unknown: Sequence[Write]) -> None:
        give_up_at = time.monotonic() + UNKNOWN_FOR_S
        while unknown and time.monotonic() < give_up_at:
            await asyncio.sleep(_AGAIN_S)
            unknown = await self._send(unknown)
        if unknown:
            log.error("Redis has lost requests (%d writes to them could not be repeated): the process that accepted "
                      "them did not submit them again. Use appendfsync always or replicas to avoid it.",
                      len(unknown))  # fmt: skip

    async def _send(self, writes: Sequence[Write]) -> list[Write]:
        """Send writes. Return those that Redis cannot take yet: it does not know the request, or lacks its answer.

        Submissions first, one by one: older requests go first.
        """
        for key in {write.key for write in writes if write.script == "submit"}:
            await _until_sent(partial(self._index.add_again, key[len("tga:{") : -len("}:")]))
        others: dict[tuple[str, str], list[Write]] = {}
        for write in writes or [_PROBE]:
            if write.script == "submit":
                await self._send_one(write)
            else:
                others.setdefault((write.key, write.request_id), []).append(write)
        places = asyncio.Semaphore(_AT_ONCE)
        rest = await asyncio.gather(*(self._send_request(of_one, places) for of_one in others.values()))
        return [write for of_one in rest for write in of_one]

    async def _send_request(self, writes: Sequence[Write], places: asyncio.Semaphore) -> Sequence[Write]:
        """Send one request's writes in order: an end must not come before the answer that it refers to."""
        async with places:
            for place, write in enumerate(writes):
                if await self._send_one(write) in _LATER and write is not _PROBE:
                    return writes[place:]
        return ()

    async def _send_one(self, write: Write) -> Any:
        run = partial(self._commands.run, write.script, write.key, *write.repeated)
        return await _until_sent(partial(_supplied, write, run))

    def _remember(self, write: Write) -> None:
        self._remembered.append(replace(write, acknowledged_at=time.monotonic()))
        self._bytes += write.size
        while self._bytes > REMEMBERED_BYTES:
            self._bytes -= self._remembered.popleft().size

    async def _forget(self) -> None:
        """Drop old writes until cancelled. While some are left, have changes of primaries noticed."""
        while True:
            await asyncio.sleep(TICK_S)
            self._forget_old()
            if self._remembered:
                self._commands.doubt()

    def _forget_old(self) -> None:
        """Drop old writes, but none while Redis is lost: the last ones before the loss are to be repeated."""
        old = time.monotonic() - REMEMBERED_S
        while self._lost_at is None and self._remembered and self._remembered[0].acknowledged_at <= old:
            self._bytes -= self._remembered.popleft().size


async def _until_sent(send: Callable[[], Awaitable[Any]]) -> Any:
    while True:
        try:
            return await send()
        except QueueUnavailableError:
            await asyncio.sleep(_AGAIN_S)


async def _supplied(write: Write, run: Callable[[], Awaitable[Any]]) -> Any:
    """Return the reply. Store what the write lacks, and once more in case Redis was lost meanwhile."""
    for _ in range(2):
        reply = await run()
        if reply != INCOMPLETE or write.supply is None:
            return reply
        await write.supply()
    return await run()


def _task(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task whose failure is logged."""
    task = asyncio.create_task(work)
    task.add_done_callback(_log_failure)
    return task


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("The queue of asynchronous requests may not notice a crash of Redis. Please report this bug.",
                  exc_info=error)  # fmt: skip


_PROBE = Write("state", "tga:{-}:", "-", (), ("-",))
"""A write without effect. Its reply shows that Redis serves."""
