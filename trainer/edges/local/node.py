"""One node of an attempt, as the trainer sees it: its runner, how it ended, and what is left of it."""

import asyncio
import logging
import signal
from pathlib import Path

from policy.training.reports import NodeState
from runtime.log_lines import cause_of
from trainer.edges.local.directories import AttemptDirectory
from trainer.edges.local.leftovers import kill_leftovers
from trainer.edges.local.node_use import processes_use
from trainer.edges.local.runner_process import RunnerProcess
from trainer.runner.launch import Launch
from trainer.runner.state import Exit, RunnerState, read_exit

_KILLED = -signal.SIGKILL
_SLACK_S = 5.0
"""The time after its own grace until a runner that still runs is killed: it was stopped itself, or the disk hangs."""
log = logging.getLogger(__name__)


class LocalNode:
    """`exit`: how it ended; None also if its runner was killed. `has_ended`: nothing of it runs."""

    def __init__(self, job_id: str, rank: int, host: str, directory: AttemptDirectory) -> None:
        self._job_id = job_id
        self.rank = rank
        self.host = host
        self._control = str(directory.control_directory(rank))
        self._runner: RunnerProcess | None = None
        self._killing: asyncio.TimerHandle | None = None
        self.exit: Exit | None = None
        self.has_ended = False
        self.was_started = False

    @property
    def control_directory(self) -> str:
        return self._control

    @property
    def state(self) -> NodeState:
        status = None if not self.has_ended else _KILLED if self.exit is None else self.exit.status
        return NodeState(self.rank, self.host, status)

    def use(self) -> tuple[int, int] | None:
        """Return the CPU nanoseconds and the bytes of memory of its processes; None if none runs. Blocks."""
        if self._runner is None or not self._runner.is_alive or self.has_ended:
            return None
        return processes_use(self._runner.state)

    async def start(self, launch: Launch) -> None:
        """Raises RunnerNotStartedError."""
        self._runner = await RunnerProcess.start(launch)
        self.was_started = True

    async def adopt(self) -> None:
        """Take up what an earlier trainer started."""
        self._runner = await RunnerProcess.adopt(Path(self._control))
        self.was_started = self._runner is not None

    async def wait(self) -> None:
        """Wait until nothing of the node runs."""
        if self._runner is not None:
            await self._runner.ended()
        if self._killing is not None:
            self._killing.cancel()
        self.exit = await self._read_exit()
        if (self.exit is None or self.exit.is_kept) and not await asyncio.to_thread(
            kill_leftovers, self._runner_state, self._job_id, self.rank
        ):
            log.error(
                "Processes of node %d of job %s could not be killed after its runner was; they still use this machine."
                " End them by hand.",
                self.rank,
                self._job_id,
            )
        if self.exit is not None:
            self.exit = self.exit._replace(is_kept=False)
        self.has_ended = True

    @property
    def _runner_state(self) -> RunnerState | None:
        return None if self._runner is None else self._runner.state

    async def _read_exit(self) -> Exit | None:
        """Tries until the file can be read: there may be too many open files, or the disk is away."""
        while True:
            try:
                return await asyncio.to_thread(read_exit, self._control)
            except OSError as error:
                log.warning("%s cannot be read (%s); trying again. Check the disk.", self._control, cause_of(error))
                await asyncio.sleep(_SLACK_S)

    async def kept(self) -> Exit | None:
        """Return how it failed, if it is kept for a session now."""
        exit = await self._read_exit()
        return exit if exit is not None and exit.is_kept and not self.has_ended else None

    def terminate(self, grace_s: float) -> None:
        """Ask it to end. Its runner keeps to the grace; a runner that does not is killed."""
        if self._runner is None or self.has_ended:
            return
        self._runner.send(signal.SIGTERM)
        if self._killing is None:
            loop = asyncio.get_running_loop()
            self._killing = loop.call_later(grace_s + _SLACK_S, self._runner.send, signal.SIGKILL)
