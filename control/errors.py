"""Every refusal and failure of control: one base error, one small class each, docstring = message.

`api/protocol/errors.py` renders them from one table. Nothing in here knows a status code.
"""

from collections.abc import Iterable, Sequence

_NAMED_USERS = 5
"""The most users that an error names of what cannot be deleted."""


class DomainError(Exception):
    """The request cannot be fulfilled."""

    def __init__(self, message: str | None = None) -> None:
        self.message = message if message is not None else " ".join((self.__doc__ or "").split())
        super().__init__(self.message)


# --- a field breaks a rule ----------------------------------------------------------------------------------------


class InvalidFieldError(DomainError):
    """A field breaks a rule. `field` is its path in the request, such as `targets.0.base_url`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class ChildExceedsParentLimitError(DomainError):
    """A threshold of the group or of one below it is above an ancestor's."""


# --- it does not exist, or belongs to another workspace -----------------------------------------------------------


class NotFoundError(DomainError):
    """resource not found"""


class NoProxyUrlError(NotFoundError):
    """This control plane does not know where the proxy is: the operator sets TOLLGATE_PROXY_URL"""


class EndpointNotFoundError(NotFoundError):
    """endpoint not found"""


class GroupNotFoundError(NotFoundError):
    """group not found"""


class BalanceNotFoundError(NotFoundError):
    """the group has no balance of its own; its first credit makes one"""


class UsageLinkOverError(NotFoundError):
    """this link has expired or is not valid any more; ask for a new one where you got it"""


class ParentGroupNotFoundError(NotFoundError):
    """parent group not found"""


class KeyNotFoundError(NotFoundError):
    """API key not found"""


class SecretNotFoundError(NotFoundError):
    """secret not found"""


class ModelNotFoundError(NotFoundError):
    """model not found"""


class TeamNotFoundError(NotFoundError):
    """team not found: a workspace has one, whose id is its own"""


class DeploymentNotFoundError(NotFoundError):
    """deployment not found"""


class EnvironmentNotFoundError(NotFoundError):
    """environment not found"""


class WebhookNotFoundError(NotFoundError):
    """webhook not found"""


class DeliveryNotFoundError(NotFoundError):
    """delivery not found"""


class PriceNotFoundError(NotFoundError):
    """price not found: no price of that slug is valid from that date; list the prices"""


class TrainingProjectNotFoundError(NotFoundError):
    """training project not found"""


class NoCacheSummaryError(NotFoundError):
    """The project has no summary of a cache: no job of it with runtime.cache_config has run yet"""


class TrainingJobNotFoundError(NotFoundError):
    """training job not found"""


class SessionNotFoundError(NotFoundError):
    """the job has no such interactive session now; GET …/auth_codes lists those that are active"""


class NoBuildConfigError(NotFoundError):
    """Tollgate builds no models, so a deployment has no configuration of a build; GET of the deployment shows it"""


class CheckpointNotFoundError(NotFoundError):
    """training checkpoint not found"""


class CheckpointFileNotFoundError(NotFoundError):
    """file not found: the link was cut off, or the checkpoint was deleted or replaced; list its files again"""


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


# --- it conflicts with what exists --------------------------------------------------------------------------------


class ConflictError(DomainError):
    """The request conflicts with what exists."""


class OlderProxiesError(ConflictError):
    """A proxy of an older version does not know some limits. The message names them and the remedy."""

    def __init__(self, limits: str) -> None:
        super().__init__(
            f"A proxy of an older version has asked for policy within a day, and does not know {limits}. Update"
            " all proxies, and try again a day after the last older one was stopped."
        )


class OtherCurrencyError(ConflictError):
    """Another group of the tree has spend limits or a balance in another currency."""

    def __init__(self, group_id: str, currency: str, field: str = "spend_limits") -> None:
        super().__init__(
            f"{field}: all spend limits and balances of a group tree have one currency, and those of group {group_id}"
            f" are in {currency}; use {currency}. Spend limits can be removed first, a balance stays"
        )


class OtherCreditError(ConflictError):
    """The group has a credit of this reference with another amount."""

    def __init__(self, reference: str, amount: str, currency: str) -> None:
        super().__init__(
            f"reference: the group's credit {reference!r} is of {amount} {currency}; nothing was changed. For another"
            " credit use another reference"
        )


class NotEnoughCreditError(ConflictError):
    """More was to be withdrawn than is available."""

    def __init__(self, available: str, currency: str) -> None:
        super().__init__(
            f"amount: only {available} {currency} of the balance is available, less what calls in flight reserve;"
            " withdraw at most that"
        )


class TooMuchCreditError(ConflictError):
    """amount: all credits of a balance above 0 together must stay below 1000000000000"""


class GroupHasCreditError(ConflictError):
    """Credit is left in a balance that was to be deleted."""

    def __init__(self, group_id: str, amount: str, currency: str) -> None:
        super().__init__(
            f"{amount} {currency} is left in the balance of group {group_id}; withdraw it first by a credit of a"
            " negative amount, or repeat the request with ?forfeit=true"
        )


class NoPromotionError(ConflictError):
    """no promotion is in progress: promoting takes effect at once; to go back, promote the deployment before"""


class EnvironmentTakenError(ConflictError):
    """the model has an environment of that name; promote a deployment to it, or choose another name"""


class SlugTakenError(ConflictError):
    """the slug is taken"""


class KeyTakenError(ConflictError):
    """key: it is registered already; bring another, or revoke it where it is"""


class ExternalEntityIdTakenError(ConflictError):
    """metadata.external_entity_id is taken by another group of this workspace"""


class SecretInUseError(ConflictError):
    """the secret is in use by an endpoint or by a training job that has not ended"""


class SecretContendedError(ConflictError):
    """another request is changing the secret at the same time; try again"""


class ModelFullError(ConflictError):
    """The model's deployments, replicas and environments would take more than 1 MiB in the proxies' copy of policy."""


class InUseError(ConflictError):
    """Others use what was to be deleted."""

    def __init__(self, users: Sequence[str] = ()) -> None:
        """`users`: the first ones by name; empty if they came meanwhile."""
        super().__init__()
        if users:
            more = " and more" if len(users) > _NAMED_USERS else ""
            self.message += f": {', '.join(users[:_NAMED_USERS])}{more}"


class ModelInUseError(InUseError):
    """endpoints route to the model"""


class EnvironmentInUseError(InUseError):
    """endpoints route to the environment"""


class DeploymentInUseError(InUseError):
    """environments point to the deployment"""


class IllegalStatusError(ConflictError):
    """The deployment's status does not allow the move."""

    def __init__(self, present: str, target: str, legal: Iterable[str]) -> None:
        may = " or ".join(sorted(legal)) or "nothing: its status changes with its replicas, or by activate and retry"
        super().__init__(f"a deployment that is {present} cannot be set to {target}; it can be set to {may}")


class TooManyWebhooksError(ConflictError):
    """The workspace has as many webhooks as it may have."""

    def __init__(self, most: int) -> None:
        super().__init__(f"a workspace has at most {most} webhooks")


class TooManyPricesError(ConflictError):
    """The workspace has as many prices as it may have."""

    def __init__(self, most: int) -> None:
        super().__init__(f"a workspace has at most {most} prices; delete those that no report needs")


class TooManyBoundsError(ConflictError):
    """The workspace's prices have as many bounds of long context as they may have."""

    def __init__(self, most: int) -> None:
        super().__init__(f"prices of a workspace have at most {most} different above_input_tokens; use one of those")


class SumsWithoutEventsError(ConflictError):
    """Hourly sums do not tell which calls have a price's long context, and their events are deleted."""

    def __init__(self, bound: int, day: str, bounds: Sequence[int]) -> None:
        super().__init__(
            f"calls of {day} are added up without regard to {bound} input tokens, and their events are deleted;"
            f" set the price from a later valid_from, or above_input_tokens to one of {', '.join(map(str, bounds))}"
        )


class PricesChangedError(ConflictError):
    """the price list was changed after the report's first page; read the report again from its start"""


class DeliveryInProgressError(ConflictError):
    """the delivery is being attempted right now"""


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


class NoReplicaEndError(ConflictError):
    """Replicas are stopped by their owner: write the list without this one with PUT …/deployments/{id}/replicas"""


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


class EventsLostError(DomainError):
    """The event that was committed before is not in this database: it was restored or replaced."""


# --- the workspace may not ----------------------------------------------------------------------------------------


class EnvironmentTokenError(DomainError):
    """The token is not that of the training job's present attempt, or it was spent."""


class TrainingNotEnabledError(DomainError):
    """Training is not enabled for this workspace; the operator enables it: tollgate workspace set NAME --training"""


# --- not now ------------------------------------------------------------------------------------------------------


class RateLimitedError(DomainError):
    """Management API rate limit exceeded for this API key"""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__()
        self.retry_after_s = retry_after_s


class TooManyCallsError(RateLimitedError):
    """The workspace has its share of what may be under way at once."""

    def __init__(self, what: str) -> None:
        """`what`: a plural, such as `downloads`."""
        super().__init__(retry_after_s=1)
        self.message = f"Too many {what} of this workspace are under way; wait for one to end, or stop one"


class DatabaseUnavailableError(DomainError):
    """The database cannot be reached at the moment; try again."""

    def __init__(self, reason: str = "") -> None:
        """`reason`: what the driver or the server said, in one line that quotes no values; for logs alone."""
        super().__init__()
        self.reason = reason


class DatabaseReadOnlyError(DatabaseUnavailableError):
    """The database can be read but not written at the moment; try again."""


class SecretUnreadableError(DomainError):
    """The stored secret cannot be opened: the operator must add its key to TOLLGATE_SECRET_KEY"""


class IngestTooSlowError(DomainError):
    """The transaction took longer than a quarter of the holdback; its timestamps could have been overtaken."""


class ProxyUnavailableError(DomainError):
    """The proxy cannot be reached at TOLLGATE_PROXY_URL right now; try again"""

    def __init__(self, reason: str = "") -> None:
        """`reason`: the kind of failure; for logs alone."""
        super().__init__()
        self.reason = reason


class AnswerBrokenError(Exception):
    """The proxy's answer broke off after its head."""


class UsageUnavailableError(DomainError):
    """Usage cannot be read right now because Redis does not answer; try again"""


class SpendNotCountedError(UsageUnavailableError):
    """The spend of this group is being counted from its events; try again in a minute"""


class LimitStartUnavailableError(UsageUnavailableError):
    """Nothing was changed: a usage limit starts from what its window has counted, and Redis does not answer. Change it
    again when Redis is back."""


class TrainingUnavailableError(DomainError):
    """The training backend cannot be reached right now; jobs stay as they are. Try again."""

    def __init__(self, reason: str | None = None) -> None:
        """`reason`: why, as the trainer says it."""
        super().__init__()
        if reason:
            self.message += f" Its trainer says: {reason}"


class CheckpointStoreUnavailableError(DomainError):
    """The checkpoint store cannot be used right now; try again."""

    def __init__(self, reason: str) -> None:
        """`reason`: what the store or its library said, without secrets."""
        super().__init__()
        self.message += f" It says: {reason}"
