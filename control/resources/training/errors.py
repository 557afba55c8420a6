"""Refusals and failures of training, as `control/errors.py` has the others."""

from collections.abc import Iterable

from control.errors import ConflictError, DomainError, InUseError, NotFoundError


class TrainingProjectNotFoundError(NotFoundError):
    """training project not found"""


class NoCacheSummaryError(NotFoundError):
    """The project has no summary of a cache: no job of it with runtime.cache_config has run yet"""


class TrainingJobNotFoundError(NotFoundError):
    """training job not found"""


class SessionNotFoundError(NotFoundError):
    """the job has no such interactive session now; GET …/auth_codes lists those that are active"""


class CheckpointNotFoundError(NotFoundError):
    """training checkpoint not found"""


class UploadNotFoundError(NotFoundError):
    """The specified upload does not exist: it was completed, aborted or replaced, or is another key's"""


class BlobTypeNotFoundError(NotFoundError):
    """There are credentials for uploads of training jobs alone: GET /v1/blobs/credentials/train"""


class NoArtifactsError(NotFoundError):
    """This training job has no artifacts: nothing was uploaded for it"""


class ArtifactNotFoundError(NotFoundError):
    """file not found: the link was cut off, or its training job was deleted; ask for the job's download again"""


class LinkExpiredError(DomainError):
    """The link has expired; list the checkpoint's files again"""


class JobEndedError(ConflictError):
    """the training job has ended"""


class JobNotEndedError(ConflictError):
    """the training job has not ended; stop it first"""


class JobNotRunningError(ConflictError):
    """the training job does not run, so no node of it can have an interactive session"""


class JobNotWaitingError(ConflictError):
    """The job does not wait: priority and availability_model can be changed before it starts only"""


class CapacityFixedError(ConflictError):
    """The capacity of training is the operator's setting: TOLLGATE_TRAINING_CAPACITY, or the machines of the cluster"""


class StartupTriggerError(ConflictError):
    """The sessions of this job begin with it (on_startup); that cannot be changed, only timeout_minutes"""


class SessionFixedError(ConflictError):
    """The job's nodes began with the session's settings: those of on_failure cannot be changed until it waits again"""


class NoSshError(ConflictError):
    """Sessions are shells in a browser, and there is no SSH: open the auth_url that GET …/auth_codes names"""


class NoSessionsError(ConflictError):
    """the training backend has no interactive sessions; the `local` one has"""


class ProjectInUseError(InUseError):
    """jobs of the training project have not ended; stop them first"""


class JobNotClaimableError(ConflictError):
    """The training job does not wait for a start, or another attempt was started meanwhile."""


class CheckpointsSyncingError(ConflictError):
    """Checkpoints that the training job starts with are still on their way into the store."""


class MissingCheckpointError(ConflictError):
    """A checkpoint that the training job loads does not exist any more."""

    def __init__(self, checkpoint: str) -> None:
        super().__init__(f"{checkpoint}, which runtime.load_checkpoint_config names, does not exist any more")


class OldTrainerError(ConflictError):
    """The trainer is of an older version, which cannot do what the job asks for; start the trainer of this one."""


class CheckpointNotSyncedError(ConflictError):
    """The checkpoint is not in the store yet; try again when its sync_status is COMPLETE"""


class MissingSecretsError(ConflictError):
    """Secrets that the training job names do not exist."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(
            f"the workspace has no secret named {' or '.join(map(repr, names))}; store it and recreate the job"
        )


class OtherTrainerError(ConflictError):
    """Another trainer reports to this control plane. It may take over 5 s after the other one was heard of last."""


class UploadHeldError(ConflictError):
    """A training job holds the upload of this key; upload with the keys of another GET /v1/blobs/credentials/train"""


class InvalidPartError(ConflictError):
    """A part that the completion lists was not uploaded, or not in this order."""


class UploadTooLargeError(ConflictError):
    """An upload has at most 5 GiB; leave large files out, or read them from elsewhere"""


class TooManyUploadsError(ConflictError):
    """The workspace has as many uploads that no training job holds as it may have."""

    def __init__(self, most: int, most_bytes: int) -> None:
        super().__init__()
        bounds = f"at most {most} uploads, and {most_bytes // 1024**3} GiB in them, that no training job holds"
        self.message = f"The workspace has {bounds}; create jobs with them, or wait: they are removed after a day"


class TooManyProjectsError(ConflictError):
    """The workspace has as many training projects as it may have."""

    def __init__(self, most: int) -> None:
        super().__init__(f"a workspace has at most {most} training projects; delete one first")


class TooManyJobsError(ConflictError):
    """The workspace has as many unfinished training jobs as it may have."""

    def __init__(self, most: int) -> None:
        super().__init__(f"a workspace has at most {most} training jobs that have not ended; stop one, or wait")


class EnvironmentTokenError(DomainError):
    """The token is not that of the training job's present attempt, or it was spent."""


class TrainingNotEnabledError(DomainError):
    """Training is not enabled for this workspace; the operator enables it: tollgate workspace set NAME --training"""


class TrainingUnavailableError(DomainError):
    """The training backend cannot be reached right now; jobs stay as they are. Try again."""

    def __init__(self, reason: str | None = None) -> None:
        """`reason`: why, as the trainer says it."""
        super().__init__()
        if reason:
            self.message += f" Its trainer says: {reason}"
