"""Every refusal and failure of control: one base error, one small class each, docstring = message.

`api/protocol/errors.py` renders them from one table. Nothing in here knows a status code.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A group of the same tree, as an error names it."""

    id: str
    external_entity_id: str
    name: str | None


@dataclass(frozen=True, slots=True)
class LimitConflict:
    """A limit of a request, and the other group's limit that forbids it, of the same slug, type and unit.

    `field`: its path in the request. `is_above`: it is above that of a group above; else it is below that of a group
    below. Amounts of spend limits are decimal text, with a `currency`.
    """

    field: str
    threshold: int | str
    other: int | str
    group: Neighbour
    is_above: bool
    type: str
    unit: str
    slug: str | None = None
    currency: str | None = None

    @property
    def maximum(self) -> int | str | None:
        """The largest threshold that passes. None: there is no bound, or a smallest one."""
        return self.other if self.is_above else None

    @property
    def minimum(self) -> int | str | None:
        """The smallest threshold that passes."""
        return None if self.is_above else self.other

    @property
    def message(self) -> str:
        """The sentence for people: what conflicts with what, and what would be allowed."""
        what = "spend" if self.slug is None else f"{self.slug} {self.type}"
        subject = f"{what} per {self.unit}: {self._text(self.threshold)}"
        place, bound, remedy = ("above", "at most", "raise") if self.is_above else ("below", "at least", "lower")
        other = self._text(self.other)
        return (
            f"{subject} is {place} the {other} of {self.group.external_entity_id}, a group {place} this one."
            f" Choose {bound} {other}, or {remedy} it there first"
        )

    def _text(self, threshold: int | str) -> str:
        return f"{threshold}" if self.currency is None else f"{threshold} {self.currency}"


class ChildExceedsParentLimitError(DomainError):
    """Child group exceeds parent group limit."""

    def __init__(self, conflicts: Sequence[LimitConflict] = ()) -> None:
        """`conflicts`: each limit of the request that another group forbids."""
        super().__init__()
        self.conflicts = conflicts


# --- it does not exist, or belongs to another workspace -----------------------------------------------------------


class NotFoundError(DomainError):
    """resource not found"""


class NoProxyUrlError(NotFoundError):
    """This control plane does not know where the proxy is: the operator sets TOLLGATE_PROXY_URL"""


class EndpointNotFoundError(NotFoundError):
    """endpoint not found"""


class GroupNotFoundError(NotFoundError):
    """group not found"""


class IdentityProviderNotFoundError(NotFoundError):
    """the workspace has no identity provider; PUT one here"""


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


class CheckpointFileNotFoundError(NotFoundError):
    """file not found: the link was cut off, or the checkpoint was deleted or replaced; list its files again"""


class NoBuildConfigError(NotFoundError):
    """Tollgate builds no models, so a deployment has no configuration of a build; GET of the deployment shows it"""


# --- it conflicts with what exists --------------------------------------------------------------------------------


class ConflictError(DomainError):
    """The request conflicts with what exists."""


class PreconditionFailedError(DomainError):
    """The request's condition does not hold: `reason`. Nothing was changed."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"Nothing was changed: {reason}. GET it again, and repeat the change with its new ETag")


class IdempotencyConflictError(ConflictError):
    """Idempotency-Key: it was sent with another body or query before; repeat that request as it was, or use another
    key"""


class RequestRunningError(ConflictError):
    """Idempotency-Key: the first request with it is still running; repeat the request in a second"""

    retry_after_s = 1


class RoleTooHighError(DomainError):
    """The key may do more than whoever makes or revokes it. The message names what, and the remedy."""

    def __init__(self, beyond: Iterable[str]) -> None:
        super().__init__(
            f"This key may do what you may not ({', '.join(sorted(beyond))}). Choose a role that may do no more than"
            " yours, or ask an admin"
        )


class OlderProxiesError(ConflictError):
    """A proxy of an older version does not know some limits. The message names them and the remedy."""

    def __init__(self, limits: str) -> None:
        super().__init__(
            f"A proxy of an older version has asked for policy within a day, and does not know {limits}. Update"
            " all proxies, and try again a day after the last older one was stopped."
        )


class OtherCurrencyError(ConflictError):
    """A group or a key of the tree has spend limits or a balance in another currency."""

    def __init__(self, owner: str, currency: str, field: str = "spend_limits") -> None:
        """`owner`: such as `group grp_…`."""
        super().__init__(
            f"{field}: all spend limits and balances of a group tree have one currency, and those of"
            f" {owner} are in {currency}; use {currency}. Spend limits can be removed first, a balance stays"
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


class NotRotatableError(ConflictError):
    """The key is in no state from which it can be rotated."""

    def __init__(self, prefix: str, why: str) -> None:
        """`why`: its state, and the remedy."""
        super().__init__(f"the key {prefix} cannot be rotated: {why}")


class TooManyKeysError(ConflictError):
    """The group has as many keys as its own people can add."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the group has {most} keys or more; revoke those that nothing uses, expired ones too")


class ExternalEntityIdTakenError(ConflictError):
    """metadata.external_entity_id is taken by another group of this workspace"""


class IdentityProviderTakenError(ConflictError):
    """issuer: another workspace has the identity provider with this issuer and this audience, and a token must name
    one workspace; have your tokens issued for another audience, or ask the operator of this installation"""


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


class NoReplicaEndError(ConflictError):
    """Replicas are stopped by their owner: write the list without this one with PUT …/deployments/{id}/replicas"""


class EventsLostError(DomainError):
    """The event that was committed before is not in this database: it was restored or replaced."""


# --- the workspace or the key may not -----------------------------------------------------------------------------


class ForbiddenKeyError(DomainError):
    """That key may do more than the one that you are logged in with; log in with one that may do as much"""


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


class CheckpointStoreUnavailableError(DomainError):
    """The checkpoint store cannot be used right now; try again."""

    def __init__(self, reason: str) -> None:
        """`reason`: what the store or its library said, without secrets."""
        super().__init__()
        self.message += f" It says: {reason}"
