"""Watches the nodes of one attempt: relays what they print, ends all when one fails, and says how the attempt ended."""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence

from policy.training.statuses import Outcome
from trainer.edges.local.verdict import End, has_failed, verdict
from trainer.edges.ray.driver.driver_parts import LostError, Node
from trainer.edges.ray.records import Output
from trainer.runner.state import Exit

_LOOK_EVERY_S = 0.25
_STOP_MARGIN_S = 30.0
"""The time beyond the grace period that a node may take to end. Then it counts as lost."""


class NodeWatch:
    """`tell` gets the output, `ended` the rank and exit status of each node that ended."""

    def __init__(
        self, nodes: Sequence[Node], grace_s: float, tell: Callable[[Output], None], ended: Callable[[int, int], None]
    ) -> None:
        self._nodes = nodes
        self._grace_s = grace_s
        self._tell = tell
        self._ended = ended
        self._exits: list[Exit | None] = [None] * len(nodes)
        self._offsets = [0] * len(nodes)
        self._running = set(range(len(nodes)))
        self._first_loss: str | None = None
        self._give_up_at: float | None = None
        self._was_stopped = False

    async def run(self, stop: asyncio.Event) -> End:
        """Watch until all nodes have ended; end them when `stop` is set."""
        stop_task = asyncio.ensure_future(self._stop_when(stop))
        try:
            await asyncio.gather(*(self._watch(rank) for rank in range(len(self._nodes))))
        finally:
            stop_task.cancel()
        return self._end()

    def _end(self) -> End:
        """Return the end as for local jobs; if a runner is missing because its machine was lost, that is the reason."""
        end = verdict(self._exits, End(Outcome.STOPPED) if self._was_stopped else None)
        has_cause = any(exit is not None and has_failed(exit) for exit in self._exits)
        if end.outcome is Outcome.FAILED and self._first_loss is not None and not has_cause:
            return End(Outcome.FAILED, self._first_loss)
        return end

    async def _stop_when(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._was_stopped = self._first_loss is None
        await self._stop_running()

    async def _watch(self, rank: int) -> None:
        try:
            exit = self._exits[rank] = await self._follow(rank)
        except LostError as error:
            exit = None
            self._first_loss = self._first_loss or str(error)
            self._tell(Output(rank, self._offsets[rank], b"", is_end=True))
        self._running.discard(rank)
        self._ended(rank, -signal.SIGKILL if exit is None else exit.status)
        if exit is None or has_failed(exit):
            await self._stop_running()

    async def _follow(self, rank: int) -> Exit | None:
        """Relay a node's output up to its end."""
        while True:
            progress = await self._nodes[rank].progress(offset := self._offsets[rank])
            if progress.content or progress.is_end:
                self._tell(Output(rank, offset, progress.content, progress.is_end))
            self._offsets[rank] = offset + len(progress.content)
            if progress.is_end:
                return progress.exit
            if not progress.content:
                self._check_patience(rank)
                await asyncio.sleep(_LOOK_EVERY_S)

    def _check_patience(self, rank: int) -> None:
        if self._give_up_at is not None and time.monotonic() > self._give_up_at:
            raise LostError(f"node {rank} did not end within {_STOP_MARGIN_S:.0f} s of its SIGKILL")

    async def _stop_running(self) -> None:
        """Stop the nodes that run. A second stop changes nothing."""
        if self._give_up_at is not None:
            return
        self._give_up_at = time.monotonic() + self._grace_s + _STOP_MARGIN_S
        await asyncio.gather(*(self._stop_one(rank) for rank in sorted(self._running)))

    async def _stop_one(self, rank: int) -> None:
        try:
            await self._nodes[rank].stop()
        except LostError:
            return  # its own watch tells of the loss
