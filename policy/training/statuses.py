"""The statuses of training jobs and of their checkpoints, and the phases that a trainer reports.

See docs/reference/training.md#statuses.
"""

from enum import Enum

CREATED = "TRAINING_JOB_CREATED"
PENDING = "TRAINING_JOB_PENDING"
DEPLOYING = "TRAINING_JOB_DEPLOYING"
RUNNING = "TRAINING_JOB_RUNNING"
COMPLETED = "TRAINING_JOB_COMPLETED"
FAILED = "TRAINING_JOB_FAILED"
DEPLOY_FAILED = "TRAINING_JOB_DEPLOY_FAILED"
STOPPED = "TRAINING_JOB_STOPPED"

QUEUED = frozenset((CREATED, PENDING))
"""The job waits for room; nothing of it runs."""
PLACED = frozenset((DEPLOYING, RUNNING))
"""A backend has the job."""
ENDED = frozenset((COMPLETED, FAILED, DEPLOY_FAILED, STOPPED))

SYNCING = "SYNCING"
ALL_SYNCED = "COMPLETED"
"""`checkpoint_sync_status` of a job whose checkpoints are all in the store."""
SYNCED = "COMPLETE"
"""`sync_status` of a checkpoint that is in the store, verified."""
FULL = "FULL"
LORA = "LORA"
"""`checkpoint_type`."""


class Phase(Enum):
    """The phase of one attempt at a job, as its trainer sees it."""

    WAITING = "WAITING"
    """The attempt does not fit now, so nothing of it runs."""
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    ENDED = "ENDED"
    """The attempt is over: nothing of it runs. The outcome says why."""


class Outcome(Enum):
    """The end of one attempt at a job."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    DEPLOY_FAILED = "DEPLOY_FAILED"
    """No start command ran."""
    STOPPED = "STOPPED"
    REQUEUED = "REQUEUED"
    """The job waits again: it was preempted, or its start was lost before anything ran."""


class Wanted(Enum):
    """The order of control for a job."""

    RUN = "RUN"
    STOP = "STOP"
    FORGET = "FORGET"
    """The job was deleted: remove its files, also those in the checkpoint store."""
