"""A training backend in memory. It passes the same suite as the real ones (`tests/contracts/training`).

Jobs run a little of the shell: `echo WORDS`, `echo WORDS >&2`, `exit N` and `sleep N`, which lasts until the job is
stopped. A test may also script an attempt itself: see `Attempt`. A second trainer may `open` the same object.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from policy.training.caches import CacheSummary
from policy.training.reports import CheckpointReport, Claimed, JobReport, NodeState
from policy.training.resources import Host
from policy.training.statuses import Outcome, Phase
from trainer.backend import (
    BackendAwayError,
    EnvironmentRefusedError,
    EnvironmentSource,
    JobEnvironment,
    NodeUse,
    NoTerminalError,
    OutputChunk,
    Terminal,
)

CHUNK_LINES = 3
HOSTS = (Host("host-0", millicpu=4000, memory_mib=8192, max_nodes=8),)
STOPPED_WITH_THE_PRODUCT = "Tollgate was stopped"
_TICKS = count(1_700_000_000_000_000_000, 1_000_000)


@dataclass
class Node:
    """One node: what it printed, how it ended."""

    host: str
    exit_status: int | None = None
    lines: list[tuple[int, bool, str]] = field(default_factory=list)
    use: tuple[int, int, int | None, int | None] = (1_000_000_000, 1024, 4096, 8192)
    """CPU nanoseconds, bytes of memory and of storage, and the size of the disk."""


@dataclass
class Attempt:
    """One attempt at a job. A test may print, end nodes and change any field."""

    job: Claimed
    nodes: list[Node]
    phase: Phase = Phase.STARTING
    outcome: Outcome | None = None
    error_message: str | None = None
    stop_outcome: Outcome | None = None
    checkpoints: list[CheckpointReport] = field(default_factory=list)
    is_syncing: bool = False

    def print(self, text: str, rank: int = 0, is_error: bool = False) -> None:
        self.nodes[rank].lines.append((next(_TICKS), is_error, text))

    def end(self, outcome: Outcome, error_message: str | None = None, exit_status: int = 0) -> None:
        """End every node that still runs, and so the attempt."""
        for node in self.nodes:
            node.exit_status = exit_status if node.exit_status is None else node.exit_status
        self.phase = Phase.ENDED
        self.outcome = outcome
        self.error_message = error_message

    def run(self) -> None:
        """Run the start commands on each node up to the first `sleep`."""
        self.phase = Phase.RUNNING
        for rank, node in enumerate(self.nodes):
            if self.phase is Phase.RUNNING:
                node.exit_status = self._run_node(rank)
            if node.exit_status:
                self.end(Outcome.FAILED, f"node {rank} exited with status {node.exit_status}", exit_status=-15)
        if self.phase is Phase.RUNNING and all(node.exit_status == 0 for node in self.nodes):
            self.end(Outcome.COMPLETED)

    def _run_node(self, rank: int) -> int | None:
        """The exit status; None if the node sleeps."""
        for line in self.job.spec.start_commands:
            for command in line.split(";"):
                word, _, rest = command.strip().partition(" ")
                if word == "sleep":
                    return None
                if word == "exit":
                    return int(rest)
                is_error = rest.endswith(">&2")
                self.print(rest.removesuffix(">&2").strip().strip("'\""), rank, is_error)
        return 0

    @property
    def report(self) -> JobReport:
        return JobReport(
            self.job.job_id,
            self.job.attempt,
            self.phase,
            self.outcome,
            self.error_message,
            tuple(NodeState(rank, node.host, node.exit_status) for rank, node in enumerate(self.nodes)),
            self.is_syncing,
        )


class FakeBackend:
    """`away`: why no method works; None if all do. `is_deaf`: jobs end at `finish_stop`, not as soon as asked to."""

    name = "fake"
    has_sessions = True

    def __init__(self, hosts: Sequence[Host] = HOSTS, environment: EnvironmentSource | None = None) -> None:
        self.machines: Sequence[Host] = hosts
        self.away: str | None = None
        self.is_deaf = False
        self.store_away: str | None = None
        self.lost_locations: set[str] = set()
        """Checkpoints that the store has lost."""
        self.told_ends: set[str] = set()
        self.turns = 0
        """Turns of the event loop that each change takes."""
        self.attempts: dict[str, Attempt] = {}
        """The latest attempt of each job."""
        self.calls: list[tuple[str, ...]] = []
        """Calls that changed something, in order."""
        self._environment = environment or _no_environment

    async def open(self) -> None:
        self._check()

    async def hosts(self) -> Sequence[Host]:
        self._check()
        return self.machines

    async def start(self, job: Claimed, hosts: Sequence[str]) -> None:
        await self._take_time()
        assert job.job_id not in self.attempts, "the attempt before it was not forgotten"
        self.calls.append(("start", job.job_id, str(job.attempt), *hosts))
        attempt = self.attempts[job.job_id] = Attempt(job, [Node(host) for host in hosts])
        names = [load.checkpoint.name for load in job.loads if load.checkpoint.location in self.lost_locations]
        if names:
            attempt.end(Outcome.DEPLOY_FAILED, f"checkpoint {names[0]} is not in the checkpoint store any more")
            return
        try:
            await self._environment(job.environment_token)
        except EnvironmentRefusedError as refused:
            attempt.end(refused.outcome, str(refused))
        else:
            attempt.run()

    async def stop(self, job_id: str, outcome: Outcome) -> None:
        await self._take_time()
        self.calls.append(("stop", job_id, outcome.value))
        attempt = self.attempts.get(job_id)
        if attempt is None or attempt.phase is Phase.ENDED:
            return
        if attempt.stop_outcome is not Outcome.STOPPED:
            attempt.stop_outcome = outcome
        if not self.is_deaf:
            self.finish_stop(job_id)

    def finish_stop(self, job_id: str) -> None:
        attempt = self.attempts[job_id]
        attempt.end(attempt.stop_outcome or Outcome.STOPPED, exit_status=-15)

    async def observe(self) -> Sequence[JobReport]:
        self._check()
        return [attempt.report for attempt in self.attempts.values()]

    async def usage(self) -> Sequence[NodeUse]:
        self._check()
        return [
            NodeUse(attempt.job.job_id, attempt.job.attempt, rank, *node.use)
            for attempt in self._running()
            for rank, node in enumerate(attempt.nodes)
            if node.exit_status is None
        ]

    async def output(self, job_id: str, attempt: int, rank: int, offset: int) -> OutputChunk:
        self._check()
        node = self._attempt(job_id, attempt).nodes[rank]
        end = min(offset + CHUNK_LINES, len(node.lines))
        has_ended = node.exit_status is not None or self.attempts[job_id].phase is Phase.ENDED
        return OutputChunk(node.lines[offset:end], end, has_ended and end == len(node.lines))

    async def checkpoints(self, job_id: str, attempt: int) -> Sequence[CheckpointReport]:
        self._check()
        return list(self._attempt(job_id, attempt).checkpoints)

    async def forget(self, job_id: str, with_store: bool) -> None:
        await self._take_time()
        if with_store and self.store_away:
            raise BackendAwayError(self.store_away)
        self.calls.append(("forget", job_id, "store" if with_store else "hosts"))
        self.attempts.pop(job_id, None)

    async def cache_summaries(self) -> Sequence[CacheSummary]:
        self._check()
        ends = {attempt.job.job_id: attempt.job for attempt in self.attempts.values() if attempt.phase is Phase.ENDED}
        jobs = [job for id, job in ends.items() if job.spec.cache is not None and id not in self.told_ends]
        self.told_ends |= {job.job_id for job in jobs}
        return [CacheSummary(job.project_id, 1, ()) for job in jobs]

    async def forget_cache(self, project_id: str) -> None:
        self._check()
        if any(attempt.job.project_id == project_id for attempt in self._running()):
            raise BackendAwayError("a job still uses it")
        self.calls.append(("forget_cache", project_id))

    async def terminal(self, job_id: str, attempt: int, rank: int) -> Terminal:
        self._check()
        if self._attempt(job_id, attempt).nodes[rank].exit_status is not None:
            raise NoTerminalError
        return FakeTerminal()

    async def close(self) -> None:
        self._check()
        self.calls.append(("close",))
        for attempt in self._running():
            attempt.end(Outcome.STOPPED, STOPPED_WITH_THE_PRODUCT, exit_status=-15)

    def _running(self) -> Iterator[Attempt]:
        return (attempt for attempt in self.attempts.values() if attempt.phase is not Phase.ENDED)

    def _attempt(self, job_id: str, attempt: int) -> Attempt:
        known_attempt = self.attempts[job_id]
        assert known_attempt.job.attempt == attempt
        return known_attempt

    async def _take_time(self) -> None:
        for _ in range(self.turns):
            await asyncio.sleep(0)
        self._check()

    def _check(self) -> None:
        if self.away is not None:
            raise BackendAwayError(self.away)


class FakeTerminal:
    """A shell that shows what is typed."""

    def __init__(self) -> None:
        self._output: asyncio.Queue[bytes] = asyncio.Queue()
        self.size: tuple[int, int] | None = None

    async def read(self) -> bytes:
        return await self._output.get()

    async def write(self, typed: bytes) -> None:
        self._output.put_nowait(typed)

    async def resize(self, columns: int, rows: int) -> None:
        self.size = (columns, rows)

    async def close(self) -> None:
        self._output.put_nowait(b"")


async def _no_environment(token: str) -> JobEnvironment:
    return JobEnvironment({}, ())
