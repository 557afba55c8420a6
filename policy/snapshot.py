"""The versioned snapshot of policy that control publishes and the proxy serves from: rows, (kind, id) → body.

Each row carries the revision of the transaction that wrote it; a body of None is a tombstone. Unknown fields are
ignored and rows with unknown values skipped, so an older proxy survives a newer control. Not those of groups: calls of
a group that this version cannot read are refused, because it may have a limit there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, NamedTuple

from policy.credentials import KeyKind
from policy.deployments import (
    DEFAULT_ENVIRONMENT,
    DEFAULT_MAX_QUEUED,
    Deployment,
    HealthCheck,
    Where,
    comparable_name,
)
from policy.endpoints import Target, VendorCConfig
from policy.keys.roles import Role
from policy.keys.settings import KeySettings, key_settings_from_wire, key_settings_to_wire
from policy.limits.groups import Enforcement, Group, GroupNode
from policy.limits.limit import Limit, SlugLimits, limit_from_wire, limit_to_wire
from policy.price_wire import LONG_CONTEXT_MEMBERS, PRICE_MEMBERS, TIER_MEMBERS, price_from_wire, price_to_wire
from policy.prices import Price
from policy.spend.balances import Balance, balance_from_wire
from policy.spend.limits import SpendLimit, spend_limits_from_wire

Wire = dict[str, Any]


class RowKind(StrEnum):
    """The kind of thing that a row describes. Each comment says what the row's id is."""

    WORKSPACE = "workspace"  # id: workspace id
    ENDPOINT = "endpoint"  # id: slug
    GROUP = "group"  # id: group id
    KEY = "key"  # id: hex SHA-256 of the whole key
    SECRET = "secret"  # noqa: S105  id: secret id
    MODEL = "model"  # id: model id
    PRICE = "price"  # id: slug
    IDENTITY_PROVIDER = "identity_provider"  # id: `policy.identity.providers.provider_id`


@dataclass(frozen=True, slots=True)
class Row:
    """One change on the wire. `body` is None if the resource was deleted at `revision`."""

    kind: str
    id: str
    revision: int
    body: Wire | None


@dataclass(frozen=True, slots=True)
class SnapshotPage:
    """One page of "all since revision R".

    `reset`: on the first page, drop all rows first (another epoch, or R is older than the tombstones); on a later page,
    start the walk again. `revision`: what the reader has reached once it has applied the page whose `next` is None.
    `next`: opaque cursor for the following page.
    `nonce`: belongs to `revision`. A reader sends it back: a restored database can reach the same revision differently.
    """

    epoch: str
    revision: int
    reset: bool
    rows: tuple[Row, ...]
    next: str | None = None
    nonce: str = ""

    def to_wire(self) -> Wire:
        rows = [[row.kind, row.id, row.revision, row.body] for row in self.rows]
        return {
            "epoch": self.epoch,
            "revision": self.revision,
            "reset": self.reset,
            "rows": rows,
            "next": self.next,
            "nonce": self.nonce,
        }

    @classmethod
    def from_wire(cls, wire: Wire) -> "SnapshotPage":
        rows = tuple(Row(*row[:4]) for row in wire["rows"])
        return cls(wire["epoch"], wire["revision"], wire["reset"], rows, wire.get("next"), wire.get("nonce", ""))


@dataclass(frozen=True, slots=True)
class SigningSecrets:
    """The secrets that sign the results of asynchronous requests, encrypted by `policy/sealing.py`.

    Until `previous_until_ms` (milliseconds since 1970) the previous one signs as well: receivers can change over.
    """

    current: str
    previous: str | None = None
    previous_until_ms: int = 0

    def to_wire(self) -> list[Any]:
        return [self.current, self.previous, self.previous_until_ms]

    @classmethod
    def from_wire(cls, body: list[Any]) -> "SigningSecrets":
        return cls(*body[:3])


@dataclass(frozen=True, slots=True)
class WorkspaceRow:
    """The tenant. `billing`: `active` or `suspended` (402). `tier`: selects the model API's limits."""

    id: str
    billing: str
    tier: str
    onboarded: bool
    async_max_body_bytes: int | None = None
    """The largest body of an asynchronous request; None: the operator's default for all workspaces."""
    signing_secrets: SigningSecrets | None = None
    """The sealed secrets that sign results; None until somebody has asked for one."""

    def to_wire(self) -> Wire:
        wire: Wire = {"billing": self.billing, "tier": self.tier, "onboarded": self.onboarded}
        if self.async_max_body_bytes is not None:
            wire["async_max_body_bytes"] = self.async_max_body_bytes
        if self.signing_secrets is not None:
            wire["signing_secrets"] = self.signing_secrets.to_wire()
        return wire

    @classmethod
    def from_wire(cls, id: str, body: Wire) -> "WorkspaceRow":
        secrets = body.get("signing_secrets")
        return cls(
            id,
            body["billing"],
            body["tier"],
            body["onboarded"],
            body.get("async_max_body_bytes"),
            None if secrets is None else SigningSecrets.from_wire(secrets),
        )


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """A slug and its one target."""

    slug: str
    id: str
    workspace_id: str
    target: Target

    def to_wire(self) -> Wire:
        return {"id": self.id, "workspace_id": self.workspace_id, "target": target_to_wire(self.target)}

    @classmethod
    def from_wire(cls, slug: str, body: Wire) -> "EndpointRow":
        return cls(slug, body["id"], body["workspace_id"], target_from_wire(body["target"]))


class KeyRow(NamedTuple):
    """An API key by its digest. `group_id` is set for FEDERATED keys only."""

    digest: str
    prefix: str
    kind: KeyKind
    workspace_id: str
    group_id: str | None
    settings: KeySettings | None = None
    """None: the key may do what its group may."""
    bucket: str | None = None
    """The prefix of the first key of a rotation, whose counters it shares. None: its own."""
    role: Role | None = None
    """The role of a workspace key; None: what its kind may do."""

    def to_wire(self) -> Wire:
        wire: Wire = {
            "prefix": self.prefix,
            "kind": self.kind.value,
            "workspace_id": self.workspace_id,
            "group_id": self.group_id,
        }
        if self.settings is not None:
            wire["settings"] = key_settings_to_wire(self.settings)
        if self.bucket is not None:
            wire["bucket"] = self.bucket
        if self.role is not None:
            wire["role"] = self.role.value
        return wire

    @classmethod
    def from_wire(cls, digest: str, body: Wire) -> "KeyRow":
        """Raises as `key_settings_from_wire` does."""
        settings = body.get("settings")
        role = body.get("role")
        return cls(
            digest,
            body["prefix"],
            KeyKind(body["kind"]),
            body["workspace_id"],
            body["group_id"],
            None if settings is None else key_settings_from_wire(settings),
            body.get("bucket"),
            None if role is None else Role(role),
        )


@dataclass(frozen=True, slots=True)
class SecretRow:
    """An upstream credential, encrypted by `policy/sealing.py`."""

    id: str
    workspace_id: str
    ciphertext: str

    def to_wire(self) -> Wire:
        return {"workspace_id": self.workspace_id, "ciphertext": self.ciphertext}

    @classmethod
    def from_wire(cls, id: str, body: Wire) -> "SecretRow":
        return cls(id, body["workspace_id"], body["ciphertext"])


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A platform model: its deployments by id, and each environment's deployment, or None while it has none."""

    id: str
    workspace_id: str
    deployments: Mapping[str, Deployment] = field(default_factory=dict)
    environments: Mapping[str, str | None] = field(default_factory=dict)
    _by_comparable_name: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """The environments again: every call looks one up, and a model may have thousands."""

    def __post_init__(self) -> None:
        names: dict[str, str] = {}
        for name, id in self.environments.items():
            if id is not None:
                names.setdefault(comparable_name(name), id)
        object.__setattr__(self, "_by_comparable_name", names)

    def deployment_at(self, where: Where) -> Deployment | None:
        """The deployment that `where` names, or None. Environments are matched without regard to case."""
        if where.deployment_id is not None:
            return self.deployments.get(where.deployment_id)
        name = where.environment or DEFAULT_ENVIRONMENT
        id = self.environments.get(name) or self._by_comparable_name.get(comparable_name(name))
        return None if id is None else self.deployments.get(id)

    def to_wire(self) -> Wire:
        return {
            "workspace_id": self.workspace_id,
            "deployments": [_deployment_to_wire(deployment) for deployment in self.deployments.values()],
            "environments": dict(self.environments),
        }

    @classmethod
    def from_wire(cls, id: str, body: Wire) -> "ModelRow":
        deployments = {wire[0]: _deployment_from_wire(wire) for wire in body["deployments"]}
        return cls(id, body["workspace_id"], deployments, dict(body["environments"]))


@dataclass(frozen=True, slots=True)
class PriceRow:
    """The prices of a slug by date, from the one that is valid now on. At least one."""

    slug: str
    workspace_id: str
    prices: tuple[Price, ...]

    def to_wire(self) -> Wire:
        return {"workspace_id": self.workspace_id, "prices": [price_to_wire(price) for price in self.prices]}

    @classmethod
    def from_wire(cls, slug: str, body: Wire) -> "PriceRow":
        """Raises ValueError for a member of a newer version: a call could cost more than it is taken to."""
        for wire in body["prices"]:
            _check_price_members(wire)
        return cls(slug, body["workspace_id"], tuple([price_from_wire(slug, wire) for wire in body["prices"]]))


def health_to_wire(health: HealthCheck) -> Wire:
    """A health check as the API, the database column and the snapshot hold it."""
    return {name: getattr(health, name) for name in HealthCheck.__dataclass_fields__}


def health_from_wire(body: Wire) -> HealthCheck:
    return HealthCheck(**{name: body[name] for name in HealthCheck.__dataclass_fields__ if name in body})


def _deployment_to_wire(deployment: Deployment) -> list[Any]:
    """Encode id, status, replicas, and the settings that are not the default ones."""
    settings: Wire = {}
    if deployment.health is not None:
        settings["health"] = health_to_wire(deployment.health)
    if deployment.max_concurrency is not None:
        settings["max_concurrency"] = deployment.max_concurrency
    if deployment.max_queued != DEFAULT_MAX_QUEUED:
        settings["max_queued"] = deployment.max_queued
    return [deployment.id, deployment.status, list(deployment.replicas), settings]


def _deployment_from_wire(wire: list[Any]) -> Deployment:
    id, status, urls = wire[:3]
    settings: Wire = wire[3] if len(wire) > 3 else {}  # an older control sends none
    health = settings.get("health")
    return Deployment(
        id,
        status,
        tuple(urls),
        health=None if health is None else health_from_wire(health),
        max_concurrency=settings.get("max_concurrency"),
        max_queued=settings.get("max_queued", DEFAULT_MAX_QUEUED),
    )


def group_to_wire(group: Group) -> Wire:
    return {
        "workspace_id": group.workspace_id,
        "parent_id": group.parent_id,
        "external_entity_id": group.external_entity_id,
        "enforcement": group.enforcement.value,
        "models": [models_entry_to_wire(entry) for entry in group.models],
    }


def group_node_from_wire(id: str, body: Wire) -> GroupNode:
    """A group without its models, which may be left out of `body`."""
    return GroupNode(*group_members_from_wire(id, body))


def group_members_from_wire(id: str, body: Wire) -> tuple[str, str, str | None, str, Enforcement]:
    """The members of a `GroupNode`. Raises ValueError for what a newer version added."""
    _check_members(body, _GROUP_MEMBERS)
    return id, body["workspace_id"], body["parent_id"], body["external_entity_id"], Enforcement(body["enforcement"])


def group_spend_from_wire(body: Wire) -> tuple[SpendLimit, ...]:
    """The spend limits of a group. Raises for one of a newer version: to ignore it would drop a limit."""
    return spend_limits_from_wire(body.get("spend_limits", ()))


def group_balance_from_wire(body: Wire) -> Balance | None:
    """The prepaid balance of a group, or None. Raises for one of a newer version, as `group_spend_from_wire` does."""
    return balance_from_wire(body.get("balance"))


def models_entry_to_wire(entry: SlugLimits) -> Wire:
    """An entry of `models[]`, as the API, the database column and the snapshot hold it."""
    return {
        "slug": entry.slug,
        "rate_limits": [limit_to_wire(limit) for limit in entry.rate_limits],
        "usage_limits": [limit_to_wire(limit) for limit in entry.usage_limits],
    }


def models_entry_from_wire(body: Wire) -> SlugLimits:
    return SlugLimits(body["slug"], *limits_from_wire(body))


def limits_from_wire(body: Wire) -> tuple[tuple[Limit, ...], tuple[Limit, ...]]:
    """The rate limits and the usage limits of an entry of `models[]`, whose slug may be left out.

    Raises for a kind or a member of a newer version: to ignore it would drop a limit.
    """
    _check_members(body, _ENTRY_MEMBERS)
    rates = tuple([limit_from_wire(limit) for limit in body["rate_limits"]])
    return rates, tuple([limit_from_wire(limit) for limit in body["usage_limits"]])


_GROUP_MEMBERS = frozenset(
    ("workspace_id", "parent_id", "external_entity_id", "enforcement", "models", "spend_limits", "balance")
)
_ENTRY_MEMBERS = frozenset(("slug", "rate_limits", "usage_limits"))


def _check_members(body: Wire, allowed: frozenset[str]) -> None:
    if not body.keys() <= allowed:
        raise ValueError(f"unknown members: {', '.join(sorted(body.keys() - allowed))}")


def _check_price_members(wire: Wire) -> None:
    _check_members(wire, PRICE_MEMBERS)
    _check_members(wire["long_context"] or {}, LONG_CONTEXT_MEMBERS)
    for tier in (wire["service_tiers"] or {}).values():
        _check_members(tier, TIER_MEMBERS)


_TARGET_FIELDS = tuple(
    each.name for each in fields(Target) if each.name not in ("provider", "vendor_c_config", "dialects")
)
"""The fields of a target that are text, and None where they are not set."""


def target_to_wire(target: Target) -> Wire:
    """A target as the API shows it: only fields that are set."""
    wire: Wire = {"provider": target.provider}
    wire |= {name: value for name in _TARGET_FIELDS if (value := getattr(target, name)) is not None}
    if target.vendor_c_config is not None:
        config = target.vendor_c_config
        wire["vendor_c_config"] = {"project_id": config.project_id, "location": config.location}
    if target.dialects is not None:
        wire["dialects"] = list(target.dialects)
    return wire


def target_from_wire(body: Wire) -> Target:
    config = body.get("vendor_c_config")
    vendor_c = VendorCConfig(config["project_id"], config["location"]) if config else None
    dialects = body.get("dialects")
    return Target(
        body["provider"],
        **{name: body.get(name) for name in _TARGET_FIELDS},
        vendor_c_config=vendor_c,
        dialects=None if dialects is None else tuple(dialects),
    )
