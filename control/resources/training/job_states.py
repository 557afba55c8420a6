"""The life of a training job: which status follows which, by what happened. Pure.

Everything that changes a job's status is here: `reported`, `claimed` and `stopped` move it along one table, and each
returns the job unchanged where nothing happened. Ended jobs never move.

See docs/reference/training.md#statuses.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from control.records.training import JobRecord
from control.resources.training.errors import JobEndedError, JobNotClaimableError, JobNotEndedError, JobNotWaitingError
from policy.training.reports import JobReport
from policy.training.statuses import (
    ALL_SYNCED,
    COMPLETED,
    CREATED,
    DEPLOY_FAILED,
    DEPLOYING,
    ENDED,
    FAILED,
    PENDING,
    PLACED,
    QUEUED,
    RUNNING,
    STOPPED,
    SYNCING,
    Outcome,
    Phase,
    Wanted,
)

MAX_ERROR_CHARS = 1000


class JobEvent(Enum):
    """An event in the life of a job."""

    DOES_NOT_FIT = "DOES_NOT_FIT"
    CLAIMED = "CLAIMED"
    """A trainer starts an attempt."""
    RUNS = "RUNS"
    HAS_COMPLETED = "HAS_COMPLETED"
    HAS_FAILED = "HAS_FAILED"
    COULD_NOT_START = "COULD_NOT_START"
    WAS_STOPPED = "WAS_STOPPED"
    LOST_ITS_PLACE = "LOST_ITS_PLACE"
    """The attempt was preempted, or it was lost before anything ran."""


_QUEUED: Mapping[JobEvent, str] = {JobEvent.CLAIMED: DEPLOYING, JobEvent.WAS_STOPPED: STOPPED}
_PLACED: Mapping[JobEvent, str] = {
    JobEvent.HAS_COMPLETED: COMPLETED,
    JobEvent.HAS_FAILED: FAILED,
    JobEvent.WAS_STOPPED: STOPPED,
    JobEvent.LOST_ITS_PLACE: PENDING,
}
TRANSITIONS: Mapping[str, Mapping[JobEvent, str]] = {
    CREATED: {**_QUEUED, JobEvent.DOES_NOT_FIT: PENDING},
    PENDING: _QUEUED,
    DEPLOYING: {**_PLACED, JobEvent.RUNS: RUNNING, JobEvent.COULD_NOT_START: DEPLOY_FAILED},
    RUNNING: {**_PLACED, JobEvent.COULD_NOT_START: FAILED},
    **{status: {} for status in ENDED},
}
"""The status after an event, by status. An event that is missing changes nothing: it is late, or repeated."""

_OUTCOMES = {
    Outcome.COMPLETED: JobEvent.HAS_COMPLETED,
    Outcome.FAILED: JobEvent.HAS_FAILED,
    Outcome.DEPLOY_FAILED: JobEvent.COULD_NOT_START,
    Outcome.STOPPED: JobEvent.WAS_STOPPED,
    Outcome.REQUEUED: JobEvent.LOST_ITS_PLACE,
}


def reported(job: JobRecord, report: JobReport, now_ms: int) -> JobRecord:
    """The job after a trainer's report; the job itself if the report is about another attempt or tells nothing new.

    A trainer reports `is_syncing` false only after it has delivered the checkpoints' own reports.
    """
    if report.attempt != job.attempt:
        return job
    event = _job_event(job, report)
    after = _moved(job, event, now_ms) if event else job
    if job.status in PLACED and event is not JobEvent.DOES_NOT_FIT:
        nodes = report.nodes if after.status not in QUEUED else ()
        after = replace(after, error_message=_error_text(report.error_message), nodes=nodes)
    elif after.status in ENDED and report.phase is Phase.ENDED and report.outcome is not Outcome.REQUEUED:
        # a checkpoint may be refused after the end
        after = replace(after, error_message=_error_text(report.error_message) or after.error_message)
    return _touched(job, replace(after, checkpoint_sync_status=_sync_status(job, report)), now_ms)


def checkpoints_reported(job: JobRecord, is_syncing: bool, now_ms: int) -> JobRecord:
    """The job after a report of checkpoints. That nothing is on its way any more, only the job's own report says."""
    status = SYNCING if is_syncing else job.checkpoint_sync_status or ALL_SYNCED
    return _touched(job, replace(job, checkpoint_sync_status=status), now_ms)


def claimed(job: JobRecord, attempt: int, environment_digest: str, now_ms: int) -> JobRecord:
    """The job once a trainer starts its next attempt. `attempt`: how many the trainer knows of.

    Raises JobNotClaimableError if the job does not wait, or has been started meanwhile.
    """
    if job.status not in QUEUED or job.stop_requested or job.is_deleted or job.attempt != attempt:
        raise JobNotClaimableError
    attempt_of = replace(job, attempt=attempt + 1, environment_digest=environment_digest)
    fresh = replace(attempt_of, error_message=None, nodes=(), output_offsets={}, claimed_at_ms=now_ms)
    return _touched(job, _moved(fresh, JobEvent.CLAIMED, now_ms), now_ms)


def stopped(job: JobRecord, now_ms: int) -> JobRecord:
    """The job after a request to stop it: a waiting one has ended, another one is asked to. JobEndedError if it has."""
    if job.status in ENDED:
        raise JobEndedError
    after = _moved(job, JobEvent.WAS_STOPPED, now_ms) if job.status in QUEUED else replace(job, stop_requested=True)
    return _touched(job, after, now_ms)


def requeued(job: JobRecord, priority: int | None, availability_model: str | None, now_ms: int) -> JobRecord:
    """The waiting job at another place in the queue. None: as it is. JobNotWaitingError if it does not wait."""
    if priority is None and availability_model is None:
        return job
    if job.status not in QUEUED:
        raise JobNotWaitingError
    place = replace(job, priority=job.priority if priority is None else priority)
    return _touched(job, replace(place, availability_model=availability_model or job.availability_model), now_ms)


def deleted(job: JobRecord, now_ms: int) -> JobRecord:
    """The job, invisible from now on. JobNotEndedError if it has not ended."""
    if job.status not in ENDED:
        raise JobNotEndedError
    return _touched(job, replace(job, is_deleted=True), now_ms)


def wanted(job: JobRecord) -> Wanted | None:
    """The order that a trainer gets for the job; None if it has ended and may keep its files."""
    if job.is_deleted:
        return Wanted.FORGET
    if job.status in ENDED:
        return None
    return Wanted.STOP if job.stop_requested else Wanted.RUN


def _job_event(job: JobRecord, report: JobReport) -> JobEvent | None:
    match report.phase:
        case Phase.WAITING:
            return JobEvent.DOES_NOT_FIT
        case Phase.STARTING:
            return None
        case Phase.RUNNING:
            return JobEvent.RUNS
        case Phase.ENDED:
            event = _OUTCOMES[report.outcome or Outcome.FAILED]
            return JobEvent.WAS_STOPPED if event is JobEvent.LOST_ITS_PLACE and job.stop_requested else event


def _moved(job: JobRecord, event: JobEvent, now_ms: int) -> JobRecord:
    status = TRANSITIONS[job.status].get(event, job.status)
    has_ended = status in ENDED and job.status not in ENDED
    is_over = has_ended or (status in QUEUED and job.status in PLACED)
    return replace(
        job,
        status=status,
        ended_at_ms=now_ms if has_ended else job.ended_at_ms,
        environment_digest=None if is_over else job.environment_digest,
        claimed_at_ms=None if status in QUEUED else job.claimed_at_ms,
    )


def _sync_status(job: JobRecord, report: JobReport) -> str | None:
    if report.is_syncing:
        return SYNCING
    return ALL_SYNCED if job.checkpoint_sync_status == SYNCING else job.checkpoint_sync_status


def _error_text(message: str | None) -> str | None:
    """A message as every database holds it."""
    if message is None:
        return None
    return message.replace("\0", "").encode("utf-8", "replace").decode()[:MAX_ERROR_CHARS]


def _touched(before: JobRecord, after: JobRecord, now_ms: int) -> JobRecord:
    """Set `updated_at` of a job that has changed, always later than before."""
    if after == before:
        return before
    return replace(after, updated_at_ms=max(now_ms, before.updated_at_ms + 1))
