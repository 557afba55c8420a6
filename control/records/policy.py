"""Workspaces, endpoints, groups, keys and secrets. Values only; times are epoch milliseconds."""

from dataclasses import dataclass, field, replace

import orjson

from control.records.audit import Person
from policy.credentials import KeyKind
from policy.endpoints import UNRESTRICTED, Target
from policy.keys.permissions import Permission, effective_role, permissions_of
from policy.keys.roles import Role
from policy.keys.settings import KeySettings, key_settings_from_wire, key_settings_to_wire
from policy.limits.groups import Enforcement, Group
from policy.prices import Price
from policy.spend.balances import Balance
from policy.spend.limits import SpendLimit


@dataclass(frozen=True, slots=True)
class WorkspaceRecord:
    """One tenant. Its signing secrets, for results of asynchronous requests, are sealed."""

    id: str
    name: str
    tier: str
    billing: str
    onboarded: bool
    created_at_ms: int
    async_max_body_bytes: int | None = None
    """None: the proxies' setting."""
    signing_secret: str | None = field(default=None, repr=False)
    previous_signing_secret: str | None = field(default=None, repr=False)
    previous_signing_until_ms: int = 0
    training: bool = False
    """True if it may create training jobs."""


@dataclass(frozen=True, slots=True)
class EndpointRecord:
    """One endpoint."""

    id: str
    workspace_id: str
    slug: str
    target: Target
    created_at_ms: int
    updated_at_ms: int
    managed_by: str | None = None
    """The policy file that owns it."""
    managed_at_ms: int | None = None
    """The endpoint's `updated_at_ms` when that file last wrote it."""
    alias: str | None = None
    """The name that the target's provider was last written with, if it is an alias."""
    region: str = UNRESTRICTED
    """It never changes."""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group as the rules see it, and what only the API shows. `path`: ids from the root to itself, each with `/`."""

    group: Group
    name: str | None
    path: str
    created_at_ms: int
    updated_at_ms: int
    managed_by: str | None = None
    managed_at_ms: int | None = None
    alert_percents: tuple[int, ...] = ()
    spend_limits: tuple[SpendLimit, ...] = ()
    balance: Balance | None = None

    @property
    def counting_owner(self) -> str:
        """The group that the counters' hashes are named after (docs/reference/limits.md#counter-layout)."""
        return self.root_id if self.group.enforcement is Enforcement.CASCADING else self.group.id

    @property
    def root_id(self) -> str:
        return self.path.partition("/")[0]

    @property
    def ancestor_ids(self) -> list[str]:
        """The ids of the ancestors, parent first, root last."""
        return self.path.split("/")[-3::-1]


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key without its digest. `group_id` None: a key of the workspace itself."""

    prefix: str
    kind: str
    workspace_id: str
    group_id: str | None
    name: str | None
    created_at_ms: int
    last_used_at_ms: int | None = None
    expires_at_ms: int | None = None
    disabled: bool = False
    settings: str | None = None
    """The other settings as JSON; None: none is set."""
    bucket: str | None = None
    """The prefix of the first key of a rotation, whose counters it shares; None: its own."""
    role: str | None = None
    replaced_by: str | None = None
    """The prefix of the key that rotation put in its place."""
    spend_root_id: str | None = None
    """The root of its group's tree, if it has spend limits of its own."""

    @property
    def key_settings(self) -> KeySettings:
        wire = {} if self.settings is None else orjson.loads(self.settings)
        return replace(key_settings_from_wire(wire), expires_at_ms=self.expires_at_ms, disabled=self.disabled)

    def with_settings(self, settings: KeySettings, root_id: str) -> "KeyRecord":
        """The key with these settings. `root_id`: of its group's tree."""
        rest = key_settings_to_wire(replace(settings, expires_at_ms=None, disabled=False))
        return replace(
            self,
            expires_at_ms=settings.expires_at_ms,
            disabled=settings.disabled,
            settings=orjson.dumps(rest).decode() if rest else None,
            spend_root_id=root_id if settings.spend_limits else None,
        )


@dataclass(frozen=True, slots=True)
class PresentedKey:
    """The key that a request presented, and the workspace it acts for."""

    prefix: str
    kind: KeyKind
    workspace_id: str
    onboarded: bool
    workspace_name: str
    role: Role | None = None
    """None: the key's kind says what it may do; `WORKSPACE_MANAGE_ALL` is then `ADMIN`."""
    person: Person | None = None
    """Whoever logged in without a key: `prefix` is then the person's, `kind` `WORKSPACE_MANAGE_ALL` with a role."""

    @property
    def actor(self) -> str:
        """The name in the audit trail."""
        return self.prefix if self.person is None else self.person.name

    @property
    def effective_role(self) -> Role | None:
        return effective_role(self.kind, self.role)

    @property
    def permissions(self) -> frozenset[Permission]:
        return permissions_of(self.kind, self.role)


@dataclass(frozen=True, slots=True)
class SecretRecord:
    """One stored credential, sealed."""

    id: str
    workspace_id: str
    name: str
    ciphertext: str
    created_at_ms: int
    updated_at_ms: int
    managed_by: str | None = None
    managed_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PriceRecord:
    """A price of a slug, known by slug and date."""

    price: Price
    updated_at_ms: int
    managed_by: str | None = None
    managed_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """The selection of a workspace's groups for a list. `top_id`: this one and all below it. None is no filter."""

    external_entity_id: str | None = None
    top_id: str | None = None
