"""Sends again what a crash of Redis may have lost: with `appendfsync everysec` the last writes that it acknowledged.

Each process remembers its acknowledged writes of `REMEMBERED_S`, and notices a lost connection at once, because it
holds a subscription. When Redis serves again, those writes go first; all of them may be repeated. For `QUIET_S` nothing
new is decided (no start, expiry or cancel), so that nothing is decided twice before others have repeated theirs.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from proxy.async_requests.queues import QueueUnavailableError
from proxy.edges.redis.async_queue.commands import QueueCommands
from proxy.edges.redis.async_queue.inputs import INCOMPLETE
from proxy.edges.redis.async_queue.workspaces import WorkspaceIndex
from runtime.background import cancelled
from runtime.redis.script import Argument

REMEMBERED_S = 3.0
REMEMBERED_BYTES = 32 << 20
QUIET_S = 2.0
"""Longer than any process takes to connect again."""
PATIENCE_S = 2.0
"""How long a write waits for the connection before it fails."""
UNKNOWN_FOR_S = 5.0
"""How long a write is repeated whose request is not known yet: another process has to submit it again."""
_AGAIN_S = 0.2
_CHANNEL = "tga:watch"
"""Nobody publishes on it."""
_UNKNOWN = (None, -1)
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

    async def close(self) -> None:
        for task in (self._watching, self._repeating):
            if task is not None:
                await cancelled(task)

    async def write(self, write: Write, is_new: Callable[[Any], bool]) -> Any:
        """Run it, and remember it if its reply says that it is new. Before it goes what has to be repeated."""
        await self.ready()
        reply = await self._supplied(write, write.arguments)
        if is_new(reply):
            self._remember(write)
        return reply

    async def _supplied(self, write: Write, arguments: Sequence[Argument]) -> Any:
        """The reply. What it lacks is stored, and once more in case Redis was lost meanwhile."""
        for _ in range(2):
            reply = await self._commands.run(write.script, write.key, *arguments)
            if reply != INCOMPLETE or write.supply is None:
                return reply
            await write.supply()
        reply = await self._commands.run(write.script, write.key, *arguments)
        if reply == INCOMPLETE:
            raise QueueUnavailableError("Redis loses what it acknowledges")
        return reply

    async def ready(self) -> None:
        """Until Redis serves and has all that this process remembers. Raises `QueueUnavailableError`."""
        if self._watching is None or self._watching.done():
            self._watching = _task(self._watch())
        if not self._serves.is_set():
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._serves.wait()
            except TimeoutError:
                raise QueueUnavailableError("no subscription") from None

    async def may_decide(self) -> bool:
        """Whether something new may be decided: not shortly after Redis was lost."""
        await self.ready()
        return time.monotonic() >= self._quiet_until

    async def quiet_is_over(self) -> None:
        await self.ready()
        await asyncio.sleep(self._quiet_until - time.monotonic())

    async def _watch(self) -> None:
        async for _ in self._commands.watched(_CHANNEL, self._on_lost):
            self._repeating = _task(self._repeat())

    def _on_lost(self, error: Exception) -> None:
        """The subscription failed, or could not be made."""
        self._commands.report(error)
        if self._repeating is not None:
            self._repeating.cancel()
        if self._serves.is_set():
            self._lost_at = time.monotonic()
            self._serves.clear()

    async def _repeat(self) -> None:
        """Runs at each subscription."""
        if self._lost_at is not None:
            since = self._lost_at - REMEMBERED_S
            unknown = await self._send([write for write in self._remembered if write.acknowledged_at >= since])
            now = time.monotonic()
            self._remembered = deque(replace(write, acknowledged_at=now) for write in self._remembered)
            self._quiet_until, self._lost_at = now + QUIET_S, None
            self._serves.set()
            await self._send_unknown(unknown)
        self._serves.set()

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
        """In order. Returns those whose request Redis does not know, and what follows them for the same request: it may
        become known meanwhile, and an end must not come before the answer that it refers to."""
        unknown, requests = list[Write](), set[tuple[str, str]]()
        for write in writes or [_PROBE]:
            request = write.key, write.request_id
            if request in requests:
                unknown.append(write)
                continue
            while True:
                try:
                    if write.script == "submit":
                        await self._index.add_again(write.key[len("tga:{") : -len("}:")])
                    reply = await self._supplied(write, write.repeated)
                    break
                except QueueUnavailableError:
                    await asyncio.sleep(_AGAIN_S)
            if reply in _UNKNOWN and write is not _PROBE:
                unknown.append(write)
                requests.add(request)
        return unknown

    def _remember(self, write: Write) -> None:
        self._remembered.append(replace(write, acknowledged_at=time.monotonic()))
        self._bytes += write.size
        while self._bytes > REMEMBERED_BYTES:
            self._bytes -= self._remembered.popleft().size
        asyncio.get_running_loop().call_later(REMEMBERED_S, self._forget_old)

    def _forget_old(self) -> None:
        """While Redis is lost nothing is forgotten: what counts is the time before the loss."""
        old = time.monotonic() - REMEMBERED_S
        while self._lost_at is None and self._remembered and self._remembered[0].acknowledged_at <= old:
            self._bytes -= self._remembered.popleft().size


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
"""Finds out whether Redis serves."""
