"""Watches the nodes of one attempt: relays what they print, ends all when one fails, and says how the attempt ended."""

import asyncio
import time
from collections.abc import Callable, Sequence

from policy.training.statuses import Outcome
from trainer.edges.ray.parts import LostError, Node, Progress
from trainer.edges.ray.records import Output

_LOOK_EVERY_S = 0.25
_STOP_MARGIN_S = 30.0
"""How much longer than the grace period a node may take to end. Then it counts as lost."""
_KILLED = -9


class NodeWatch:
    """`tell` gets the output, `ended` the rank and exit status of each node that ended."""

    def __init__(
        self, nodes: Sequence[Node], grace_s: float, tell: Callable[[Output], None], ended: Callable[[int, int], None]
    ) -> None:
        self._nodes = nodes
        self._running = set(range(len(nodes)))
        self._offsets = [0] * len(nodes)
        self._grace_s = grace_s
        self._tell = tell
        self._ended = ended
        self._give_up_at: float | None = None
        self._failure: tuple[Outcome, str] | None = None
        self._was_stopped = False

    async def run(self, stop: asyncio.Event) -> tuple[Outcome, str | None]:
        """Watch until all nodes have ended; end them when `stop` is set. Returns the outcome and its reason."""
        stopping = asyncio.ensure_future(self._stop_when(stop))
        try:
            await asyncio.gather(*(self._watch(rank) for rank in range(len(self._nodes))))
        finally:
            stopping.cancel()
        if self._failure is not None:
            return self._failure
        return (Outcome.STOPPED if self._was_stopped else Outcome.COMPLETED), None

    async def _stop_when(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._was_stopped = self._failure is None
        await self._stop_running()

    async def _watch(self, rank: int) -> None:
        try:
            last = await self._follow(rank)
        except LostError as error:
            last = Progress(b"", _KILLED, str(error))
            self._tell(Output(rank, self._offsets[rank], b"", is_end=True))
        status = last.exit_status or 0
        if status != 0:
            self._fail(Outcome.FAILED if last.did_run else Outcome.DEPLOY_FAILED, last.failure or f"node {rank} failed")
        self._running.discard(rank)
        self._ended(rank, status)
        if status != 0:
            await self._stop_running()

    def _fail(self, outcome: Outcome, reason: str) -> None:
        """Keep the first failure. Nodes that fail because they are stopped are no failure of the job."""
        if self._failure is None and not self._was_stopped:
            self._failure = outcome, reason

    async def _follow(self, rank: int) -> Progress:
        """Relay a node's output up to its end."""
        while True:
            progress = await self._nodes[rank].progress(offset := self._offsets[rank])
            if progress.content or progress.exit_status is not None:
                self._tell(Output(rank, offset, progress.content, is_end=progress.exit_status is not None))
            if progress.exit_status is not None:
                return progress
            self._offsets[rank] = offset + len(progress.content)
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
