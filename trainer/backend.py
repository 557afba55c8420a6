"""The protocol of training backends: they run jobs' nodes, keep what these print, and put checkpoints into the store.

`trainer/app.py` builds one with the settings, an `EnvironmentSource` and the store of `trainer/edges/checkpoints`. A
fake and the real ones pass the same suite (`tests/contracts/training`).
See docs/reference/training.md#backends.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from policy.training.artifacts import Artifact
from policy.training.caches import CacheSummary
from policy.training.reports import CheckpointReport, Claimed, JobReport, Restore
from policy.training.resources import Host
from policy.training.statuses import Outcome
from policy.training.weights import Weights


class BackendAwayError(Exception):
    """The backend cannot be reached. The message says why and what to check."""


class RestoreError(Exception):
    """A checkpoint cannot be put back: the store has lost it, or the disk is full. The message says why."""


class ArtifactError(Exception):
    """An artifact cannot be unpacked: its archive is bad or lost, or the disk is full. The message says why."""


class WeightsError(Exception):
    """Weights cannot be fetched, or not be written. The message says why, in one line and without secrets."""


class NoTerminalError(Exception):
    """This node has no shell: it has ended, or the backend has no sessions."""


class EnvironmentRefusedError(Exception):
    """Control does not give out a job's environment. The message says why; the attempt ends with it and `outcome`."""

    def __init__(self, message: str, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """A job's own environment variables, secrets among them, what to mask in its output, and its weights."""

    variables: Mapping[str, str] = field(repr=False)
    secrets: Sequence[str] = field(repr=False)
    weights: Sequence[Weights] = ()


EnvironmentSource = Callable[[str], Awaitable[JobEnvironment]]
"""Spends `Claimed.environment_token`. Waits while control is away. Raises EnvironmentRefusedError."""


class JobCheckpoints(Protocol):
    """The checkpoints of one attempt: `trainer.edges.checkpoints.CheckpointSync`."""

    @property
    def is_syncing(self) -> bool:
        """Return whether a checkpoint that is complete on disk is not in the store yet."""
        ...

    @property
    def refusal(self) -> str | None:
        """Return which checkpoint is not stored as it is, and why, for people. None if there is none."""
        ...

    async def run_once(self) -> Sequence[CheckpointReport]:
        """Look at the directory, let what is complete be sent in the background, and report all checkpoints."""
        ...

    async def restore(self, restore: Restore) -> None:
        """Put a checkpoint from the store back under its name, verified. BackendAwayError, RestoreError."""
        ...

    async def load(self, checkpoint: Restore) -> None:
        """Put a checkpoint of another job into the directory, verified. BackendAwayError, RestoreError."""
        ...

    async def finish(self) -> None:
        """Send what is left once the job has ended, however long the store is away. Until then `is_syncing`."""
        ...

    async def remove(self) -> None:
        """Remove everything of the job from the store. BackendAwayError."""
        ...


@dataclass(frozen=True, slots=True)
class CheckpointTerms:
    """The terms of a job's checkpoints. To remove them they need not be known."""

    workspace_id: str = ""
    """The workspace whose share of the transfers they take."""
    max_gib: int | None = None
    """The job's own bound of a checkpoint's size."""


ANY_TERMS = CheckpointTerms()


class CheckpointSource(Protocol):
    """Makes the checkpoints of a job."""

    def __call__(self, directory: Path, job_id: str, terms: CheckpointTerms = ANY_TERMS) -> JobCheckpoints: ...


class ArtifactSource(Protocol):
    """Unpacks uploads from the store: `trainer.edges.artifacts.Artifacts`."""

    async def unpack(self, artifacts: Sequence[Artifact], directory: Path, workspace_id: str) -> None:
        """Unpack the archives, in this order, in a directory whose owner gets the files.

        `workspace_id`: whose share of the transfers it takes. BackendAwayError if the store is away; ArtifactError.
        """
        ...


class WeightsSource(Protocol):
    """Fetches weights from elsewhere: `trainer.edges.weights.WeightsFetcher`."""

    async def fetch(
        self, weights: Sequence[Weights], directory: Path, workspace_id: str, tell: Callable[[str], None]
    ) -> None:
        """Put them into the directory of weights below `directory`, whose owner gets the files. WeightsError.

        `workspace_id`: whose share of the fetches it takes. `tell` gets lines for the job's log; it may block.
        """
        ...


@dataclass(frozen=True, slots=True)
class NodeUse:
    """The use of a node that runs: CPU time since it began, memory, the bytes in its directory, and its disk's size.

    `storage_bytes` None: there are too many files to add up.
    """

    job_id: str
    attempt: int
    rank: int
    cpu_ns: int
    memory_bytes: int
    storage_bytes: int | None
    storage_total_bytes: int | None


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """Whole lines of one node's output from an offset on. `lines`: (epoch ns, is standard error, text), masked.

    At most 1 MiB of text, but one line at least if there is one: a chunk is sent whole.
    `next_offset` is where the next chunk starts. `is_end`: the node has ended, and this is the last of its output.
    """

    lines: Sequence[tuple[int, bool, str]]
    next_offset: int
    is_end: bool


class Terminal(Protocol):
    """A shell in a pseudo-terminal on a node, in the job's working directory and environment."""

    async def read(self) -> bytes:
        """Return what the shell wrote; empty at its end."""
        ...

    async def write(self, typed: bytes) -> None: ...

    async def resize(self, columns: int, rows: int) -> None: ...

    async def close(self) -> None:
        """End the shell and what it started in its foreground."""
        ...


class Backend(Protocol):
    """One backend. Every method may raise BackendAwayError. Each is idempotent unless it says otherwise."""

    @property
    def name(self) -> str: ...

    @property
    def has_sessions(self) -> bool: ...

    async def open(self) -> None:
        """Take up what an earlier trainer left: adopt the jobs that still run."""
        ...

    async def hosts(self) -> Sequence[Host]:
        """The machines, as if no job ran on them."""
        ...

    async def start(self, job: Claimed, hosts: Sequence[str]) -> None:
        """Begin an attempt: node `rank` on `hosts[rank]`. Progress and failure show in `observe`, from the return on.

        Nothing is left of earlier attempts: `forget` was called."""
        ...

    async def stop(self, job_id: str, outcome: Outcome) -> None:
        """Ask a job to end: SIGTERM now, SIGKILL after the grace period. `outcome` (STOPPED or REQUEUED) if it runs.

        Returns without waiting for the end. STOPPED after REQUEUED wins. No such job, or it has ended: nothing."""
        ...

    async def observe(self) -> Sequence[JobReport]:
        """The latest attempt of every job that the backend has something of, from STARTING on with each node's host."""
        ...

    async def usage(self) -> Sequence[NodeUse]:
        """Return what the nodes that run use now; none where the backend does not measure it."""
        ...

    async def output(self, job_id: str, attempt: int, rank: int, offset: int) -> OutputChunk:
        """Return a bounded part of what a node printed, from `offset` on."""
        ...

    async def checkpoints(self, job_id: str, attempt: int) -> Sequence[CheckpointReport]:
        """The checkpoints of an attempt, as far as their way into the store. Not those it was restored from."""
        ...

    async def forget(self, job_id: str, with_store: bool) -> None:
        """Remove everything of an ended job from the hosts, and with `with_store` from the checkpoint store.

        With `with_store` also a job of which the hosts have nothing. BackendAwayError if the store is away."""
        ...

    async def cache_summaries(self) -> Sequence[CacheSummary]:
        """The projects' caches that may have changed, at most every 30 s while a job runs, and once after its end.

        A backend without caches has none. Each is told once.
        """
        ...

    async def forget_cache(self, project_id: str) -> None:
        """Remove the cache of a deleted project. BackendAwayError if something is left, or a job still uses it."""
        ...

    async def terminal(self, job_id: str, attempt: int, rank: int) -> Terminal:
        """A new shell on a node. NoTerminalError if the node has ended."""
        ...

    async def close(self) -> None:
        """End the trainer's part. `local` stops its jobs, so that none outlives the product; others leave them.

        Returns once they have ended. `observe`, `output` and `checkpoints` answer for these jobs meanwhile and
        afterwards, so that control learns of their ends; nothing else is called."""
        ...
