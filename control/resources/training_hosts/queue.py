"""The place of a job in the queue, and why it waits, by the rule that starts jobs (`policy/training/placement`).

Jobs of other workspaces count, and are not named.
See docs/reference/training.md#queue.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from control.edges.sql.store import Connection, Store, now_ms
from control.edges.sql.training import backend_rows, job_rows
from control.long_work import beside
from control.records.training import BackendRecord, JobRecord
from control.resources.training.backends import present_backend
from control.resources.training.claims import find_restore
from control.resources.training.errors import (
    CheckpointsSyncingError,
    TrainingJobNotFoundError,
    TrainingUnavailableError,
)
from policy.training.job_spec import SPOT
from policy.training.placement import Candidate, Placed, WaitReason, why_waiting
from policy.training.statuses import PLACED, QUEUED

BACKEND_AWAY = "BACKEND_AWAY"
CHECKPOINTS_SYNCING = "CHECKPOINTS_SYNCING"
_MESSAGES = {
    WaitReason.STARTS: "it fits, and starts within a second",
    WaitReason.PREEMPTS: "it is the first that waits: spot jobs are ending to make room for it",
    WaitReason.NO_ROOM: "it does not fit in what the jobs that run leave",
    WaitReason.RESERVED: "it would fit, but the room is reserved for the first job that waits",
}


@dataclass(frozen=True, slots=True)
class Wait:
    """The place of a waiting job. `position`: 1 is the first. `reason`: a code; `message`: the same for people."""

    position: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class QueueContext:
    """A job and its surroundings in the queue. `wait` None: it does not wait. `backend`: its name.

    `active` and `ahead`: the workspace's other jobs that had room when it was created, and that waited before it then.
    """

    job: JobRecord
    wait: Wait | None
    backend: str
    active: Sequence[JobRecord]
    ahead: Sequence[JobRecord]
    at_ms: int


async def read_context(store: Store, workspace_id: str, job_id: str) -> QueueContext:
    async with store.read() as conn:
        job = await job_rows.find_job_anywhere(conn, job_id)
        if job is None or job.workspace_id != workspace_id or job.is_deleted:
            raise TrainingJobNotFoundError
        at_ms = now_ms()
        backend = await backend_rows.find_backend(conn)
        wait = await _wait(conn, job, at_ms) if job.status in QUEUED else None
        others = [one for one in await job_rows.jobs_at(conn, workspace_id, job.created_at_ms) if one.id != job.id]
    return QueueContext(
        job=job,
        wait=wait,
        backend=backend.backend if backend else "",
        active=[one for one in others if _had_room(one, job.created_at_ms)],
        ahead=[one for one in others if _was_ahead(one, job)],
        at_ms=at_ms,
    )


async def _wait(conn: Connection, job: JobRecord, at_ms: int) -> Wait:
    jobs = await job_rows.wanted_jobs(conn)
    queue = sorted((candidate_of(one) for one in jobs if one.status in QUEUED), key=lambda one: one.order)
    position = next((place for place, one in enumerate(queue, 1) if one.job_id == job.id), len(queue) + 1)
    try:
        backend = await present_backend(conn, at_ms)
        await find_restore(conn, job)
    except TrainingUnavailableError as error:
        return Wait(position, BACKEND_AWAY, f"nothing starts now: {error.message}")
    except CheckpointsSyncingError:
        return Wait(position, CHECKPOINTS_SYNCING, "the checkpoint that it starts with is on its way into the store")
    reason = await beside(job.workspace_id, len(jobs), partial(_reason, backend, jobs, queue, candidate_of(job)))
    return Wait(position, reason.value, _MESSAGES[reason])


def _reason(
    backend: BackendRecord, jobs: Sequence[JobRecord], queue: Sequence[Candidate], job: Candidate
) -> WaitReason:
    placed = [
        Placed(candidate_of(one), tuple(node.host for node in one.nodes), one.stop_requested)
        for one in jobs
        if one.status in PLACED
    ]
    return why_waiting(backend.hosts, placed, queue, job)


def candidate_of(job: JobRecord) -> Candidate:
    is_spot = job.availability_model == SPOT
    return Candidate(job.id, is_spot, job.priority, job.created_at_ms, job.node_count, job.resources)


def _had_room(other: JobRecord, at_ms: int) -> bool:
    return other.claimed_at_ms is not None and other.claimed_at_ms <= at_ms


def _was_ahead(other: JobRecord, job: JobRecord) -> bool:
    """Return whether it waited when the job was created, and comes before it."""
    is_known = other.status in QUEUED or other.claimed_at_ms is not None
    return is_known and not _had_room(other, job.created_at_ms) and candidate_of(other).order < candidate_of(job).order
