"""A policy file and a workspace in the same terms, so that they can be compared. Frozen values.

Secrets, models and parents are referred to by name, as people do; ids are those of the API.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from commands.policy_file.group_keys.values import GroupKey
from policy.billing import EVENT_TYPE
from policy.endpoints import PROVIDER_NAMES
from policy.limits.groups import Enforcement
from policy.limits.limit import SlugLimits
from policy.prices import Price, date_text
from policy.spend.limits import SpendLimit

V_co = TypeVar("V_co", covariant=True)


class Kind(StrEnum):
    """The kinds of resources that a policy file describes."""

    SECRET = "secret"  # noqa: S105 (a kind, no secret)
    ENDPOINT = "endpoint"
    GROUP = "group"
    WEBHOOK = "webhook"
    PRICE = "price"
    KEY = "key"


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret by its name. `env`: the environment variable that holds its value; None for a stored one."""

    name: str
    env: str | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A slug and its target, in the file's fields: `secret` and `model` instead of ids."""

    slug: str
    target: Mapping[str, Any]
    region: str | None = None
    """None: it stays as it is, UNRESTRICTED for a new endpoint."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group. `parent`: the parent's external id. `enforcement` None: the parent's, or INDEPENDENT."""

    external_entity_id: str
    name: str | None = None
    enforcement: Enforcement | None = None
    parent: str | None = None
    models: tuple[SlugLimits, ...] = ()
    alert_percents: tuple[int, ...] = ()
    spend_limits: tuple[SpendLimit, ...] = ()
    """DAY before MONTH."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """A receiver of billing events or alerts. `group`: the external id of the only one that it is told of, if any.

    `number` tells apart those with the same URL, description and group, from 1.
    """

    url: str
    description: str | None = None
    enabled: bool = True
    include_details: bool = False
    number: int = 1
    event_types: tuple[str, ...] = (EVENT_TYPE,)
    group: str | None = None

    @property
    def identity(self) -> tuple[str, str | None, str | None]:
        """The members that cannot change, or by which people know it."""
        return self.url, self.description, self.group

    @property
    def key(self) -> str:
        described = "" if self.description is None else f" ({self.description})"
        scope = "" if self.group is None else f" for {self.group}"
        return f"{self.url}{described}{scope}{'' if self.number == 1 else f' #{self.number}'}"


@dataclass(frozen=True, slots=True)
class SlugPrice:
    """A price of a slug from a date on."""

    price: Price

    @property
    def key(self) -> str:
        return f"{self.price.slug} from {date_text(self.price.valid_from_ms)}"


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A policy file: `name` owns what is applied from it. Groups: parents before children."""

    name: str
    secrets: tuple[Secret, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    groups: tuple[Group, ...] = ()
    webhooks: tuple[Webhook, ...] = ()
    prices: tuple[SlugPrice, ...] = ()
    keys: tuple[GroupKey, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnedResource(Generic[V_co]):
    """A resource of the workspace, and which policy file owns it. `drifted`: something else changed it since.

    `applied_at`: when its owner last wrote it. `updated_at`: its last change, if the API shows it.
    """

    id: str
    value: V_co
    owner: str | None = None
    drifted: bool = False
    applied_at: str | None = None
    updated_at: str | None = None


@dataclass(frozen=True, slots=True)
class LastChange:
    """The last change of a resource. `actor`: who made it; None if the audit trail does not tell."""

    at: str | None
    actor: str | None


@dataclass(frozen=True, slots=True)
class GroupLosses:
    """The things that are deleted with a group: its keys, and the credit of its own balance; None without any."""

    keys: int
    credit: str | None = None


@dataclass(frozen=True, slots=True)
class Workspace:
    """A workspace's resources by identity: secret name, slug, external id, slug and date. Groups: parents first.

    `models`: id to name. `equal`: for each secret whose value was compared, whether it is the stored one. `providers`:
    the names that targets may have for them. `keys`: by the external id of their group, as far as they were asked for.
    """

    secrets: Mapping[str, OwnedResource[Secret]] = field(default_factory=dict)
    endpoints: Mapping[str, OwnedResource[Endpoint]] = field(default_factory=dict)
    groups: Mapping[str, OwnedResource[Group]] = field(default_factory=dict)
    webhooks: tuple[OwnedResource[Webhook], ...] = ()
    prices: Mapping[str, OwnedResource[SlugPrice]] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    equal: Mapping[str, bool] = field(default_factory=dict)
    providers: Collection[str] = tuple(PROVIDER_NAMES)
    keys: Mapping[str, Sequence[GroupKey]] = field(default_factory=dict)
