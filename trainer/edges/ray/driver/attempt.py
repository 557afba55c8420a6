"""One attempt at a job, as its driver runs it: reserve, start, watch and end the nodes, sync the checkpoints, tell all.

Knows Ray only by `trainer/edges/ray/driver/driver_parts.py`. See docs/reference/training.md#ray.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from policy.training.reports import JobReport, NodeState
from policy.training.statuses import Outcome, Phase
from runtime.background import cancelled
from trainer.backend import EnvironmentRefusedError, EnvironmentSource, JobEnvironment
from trainer.edges.ray.driver.driver_parts import (
    Checkpoints,
    LostError,
    Node,
    NodeStart,
    NoRoomError,
    Placement,
    Synced,
)
from trainer.edges.ray.driver.node_watch import NodeWatch
from trainer.edges.ray.launch import RayLaunch
from trainer.edges.ray.records import Output, Record
from trainer.stopping import StoppedError, unless_stopped

_SYNC_EVERY_S = 1.0
_RELAY_EVERY_S = 1.0


class Attempt:
    """Runs one attempt to its end. `tell` gets all that the trainer must know."""

    def __init__(
        self, launch: RayLaunch, placement: Placement, environment: EnvironmentSource, tell: Callable[[Record], None]
    ) -> None:
        self._launch = launch
        self._placement = placement
        self._environment = environment
        self._tell = tell
        self._stop = asyncio.Event()
        states = tuple(NodeState(rank, host) for rank, host in enumerate(launch.hosts))
        self._report = JobReport(launch.job.job_id, launch.job.attempt, Phase.STARTING, nodes=states)
        self._synced = Synced((), False)
        self._sync_loss: str | None = None
        self._nodes: list[Node] = []
        self._checkpoints: Checkpoints | None = None

    def stop(self) -> None:
        """End the nodes. What they wrote still goes into the store."""
        self._stop.set()

    async def run(self) -> None:
        """Returns when the attempt has ended, its checkpoints are in the store and its files are gone."""
        self._tell(self._report)
        try:
            await self._start()
        except (LostError, NoRoomError, EnvironmentRefusedError, StoppedError) as error:
            await self._clean()
            self._change(phase=Phase.ENDED, outcome=_early_outcome(error), error_message=str(error) or None)
            return
        self._change(phase=Phase.RUNNING)
        await self._run()

    async def _start(self) -> None:
        job = self._launch.job
        await unless_stopped(self._stop, self._placement.reserve())
        self._nodes = [self._placement.node(rank) for rank in range(job.spec.node_count)]
        self._checkpoints = None if job.spec.checkpoint_path is None else self._placement.checkpoints()
        addresses = await unless_stopped(self._stop, asyncio.gather(*(node.prepare() for node in self._nodes)))
        if job.artifacts:
            await unless_stopped(self._stop, asyncio.gather(*(node.unpack() for node in self._nodes)))
        if self._checkpoints is not None and job.restore is not None:
            await unless_stopped(self._stop, self._checkpoints.restore(job.restore))
        if job.loads:
            await unless_stopped(self._stop, asyncio.gather(*(node.load() for node in self._first_nodes().values())))
        if self._checkpoints is not None:
            synced = await unless_stopped(self._stop, self._checkpoints.look())  # fails if it cannot be synced at all
            self._note_synced(synced)
        environment = await unless_stopped(self._stop, self._environment(job.environment_token))
        if environment.weights:
            await unless_stopped(self._stop, self._fetch(environment))
        await asyncio.gather(*(node.start(NodeStart(environment, addresses[0])) for node in self._nodes))

    async def _fetch(self, environment: JobEnvironment) -> None:
        """Fetch the weights on each machine once, and relay meanwhile what that tells."""
        nodes = self._first_nodes()
        relaying = [asyncio.ensure_future(self._relay(rank, node)) for rank, node in nodes.items()]
        try:
            await asyncio.gather(*(node.fetch(environment) for node in nodes.values()))
        finally:
            await asyncio.gather(*map(cancelled, relaying))

    def _first_nodes(self) -> dict[int, Node]:
        """The first node of each machine, by rank: the others share what it gets."""
        ranks = {ray_node: rank for rank, ray_node in reversed(list(enumerate(self._launch.ray_nodes)))}
        return {rank: self._nodes[rank] for rank in sorted(ranks.values())}

    async def _relay(self, rank: int, node: Node) -> None:
        """Tell what a node's output is before it starts. Once it runs, all of it is told again, at the same offsets."""
        offset = 0
        while True:
            with contextlib.suppress(LostError):  # the fetch tells of the loss
                progress = await node.progress(offset)
                if progress.content:
                    self._tell(Output(rank, offset, progress.content))
                    offset += len(progress.content)
            await asyncio.sleep(_RELAY_EVERY_S)

    async def _run(self) -> None:
        """Watch the nodes and sync beside it; then finish the sync and clean up."""
        ended = asyncio.Event()
        syncing = asyncio.ensure_future(self._sync(ended))
        watch = NodeWatch(self._nodes, self._launch.stop_grace_s, self._tell, self._node_ended)
        end = await watch.run(self._stop)
        has_sync = self._checkpoints is not None
        reason = end.error_message or self._sync_loss
        self._change(phase=Phase.ENDED, outcome=end.outcome, error_message=self._message(reason), is_syncing=has_sync)
        ended.set()
        ended_nodes = self._nodes
        self._nodes = []
        await _despite_losses(node.clean() for node in ended_nodes[int(has_sync) :])  # node 0's: with its checkpoints
        self._placement.release()
        await syncing
        await self._clean()
        self._change(is_syncing=False, error_message=self._message(reason))

    async def _clean(self) -> None:
        """Remove the files of the attempt, and end what may still run of it."""
        await _despite_losses(node.clean() for node in self._nodes)
        if self._checkpoints is not None:
            await _despite_losses((self._checkpoints.clean(),))
        self._placement.release()

    async def _sync(self, ended: asyncio.Event) -> None:
        """Sync every second until the nodes have ended and all is in the store, or the machine is lost."""
        checkpoints = self._checkpoints
        try:
            while checkpoints is not None and not ended.is_set():
                self._note_synced(await checkpoints.look())
                await _within(_SYNC_EVERY_S, ended)
            while checkpoints is not None:
                self._note_synced(await checkpoints.finish())
                if not self._synced.is_syncing:
                    return
        except LostError as error:
            self._sync_loss = f"checkpoints may be missing: {error}"

    def _note_synced(self, synced: Synced) -> None:
        if synced.reports != self._synced.reports:
            self._tell(synced.reports)
        self._synced = synced
        if self._report.phase is not Phase.ENDED:
            self._change(is_syncing=synced.is_syncing, error_message=self._message(None))

    def _message(self, reason: str | None) -> str | None:
        """The reason of the end, and which checkpoint is not stored."""
        return "; ".join(filter(None, (reason, self._synced.refusal))) or None

    def _node_ended(self, rank: int, exit_status: int) -> None:
        states = list(self._report.nodes)
        states[rank] = replace(states[rank], exit_status=exit_status)
        self._change(nodes=tuple(states))

    def _change(self, **changes: object) -> None:
        """Change the report, and tell it if that makes a difference."""
        before = self._report
        self._report = replace(self._report, **changes)  # type: ignore[arg-type]
        if self._report != before:
            self._tell(self._report)


def _early_outcome(error: Exception) -> Outcome:
    """The outcome of an attempt of which no start command ran."""
    if isinstance(error, EnvironmentRefusedError):
        return error.outcome
    if isinstance(error, NoRoomError):
        return Outcome.REQUEUED
    return Outcome.STOPPED if isinstance(error, StoppedError) else Outcome.DEPLOY_FAILED


async def _within(seconds: float, event: asyncio.Event) -> None:
    """Wait for the event, at most `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


async def _despite_losses(works: Iterable[Awaitable[None]]) -> None:
    """Do all of it. What is lost needs no cleaning."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for error in results:
        if isinstance(error, BaseException) and not isinstance(error, LostError):
            raise error
