"""Permissions: what each role and each kind of key may do (docs/reference/roles.md).

Each operation of the management API names the one permission that it needs. Roles are compared by their permissions.
"""

from collections.abc import Mapping
from enum import StrEnum

from policy.credentials import KeyKind
from policy.keys.roles import Role


class Permission(StrEnum):
    """One thing that a role may do or not. What hands out a power needs the permission of that power, never `READ`."""

    READ = "read"
    PRICES = "prices"
    CREDITS = "credits"
    POLICY = "policy"
    KEYS = "keys"
    WORKLOADS = "workloads"
    INVOKE = "invoke"
    TRUST = "trust"


MEANINGS: Mapping[Permission, str] = {
    Permission.READ: "read everything that shows no secret and hands out no power: policy, usage, costs, statements,"
    " billing events, requests, logs, the audit trail, metrics",
    Permission.PRICES: "set and delete prices",
    Permission.CREDITS: "pay into prepaid balances, withdraw from them, delete a group with credit left",
    Permission.POLICY: "endpoints, groups and their limits, stored secrets; test messages of webhooks",
    Permission.KEYS: "keys of groups, workspace keys that may do no more than oneself, links to usage pages",
    Permission.WORKLOADS: "models, deployments, environments, training jobs, uploads and downloads",
    Permission.INVOKE: "call models and asynchronous requests at the proxy, the console's playground",
    Permission.TRUST: "webhooks and their secrets, the signing secret of asynchronous results, codes of interactive"
    " sessions, the identity provider",
}
Permissions = frozenset[Permission]
EVERYTHING: Permissions = frozenset(Permission)
"""The permissions of an administrator, and of commands on the machine itself."""
_OPERATOR = (Permission.READ, Permission.PRICES, Permission.POLICY)
_OF_ROLES: Mapping[Role, Permissions] = {
    Role.VIEWER: frozenset({Permission.READ}),
    Role.BILLING: frozenset({Permission.READ, Permission.PRICES, Permission.CREDITS}),
    Role.OPERATOR: frozenset({*_OPERATOR, Permission.KEYS, Permission.WORKLOADS, Permission.INVOKE}),
    Role.ADMIN: EVERYTHING,
}
_OF_KINDS: Mapping[KeyKind, Permissions] = {
    KeyKind.WORKSPACE_INVOKE: frozenset({Permission.INVOKE}),
    KeyKind.WORKSPACE_EXPORT_METRICS: frozenset({Permission.READ}),
    KeyKind.FEDERATED: frozenset(),
}


def effective_role(kind: KeyKind, role: Role | None) -> Role | None:
    """The role of a key: `ADMIN` of a managing one without any. None: a key of another kind has none."""
    if kind is not KeyKind.WORKSPACE_MANAGE_ALL:
        return None
    return Role.ADMIN if role is None else role


def permissions_of(kind: KeyKind, role: Role | None) -> Permissions:
    """The permissions of a key. Its kind says at which interface it has them: `policy.credentials.may_manage`."""
    effective = effective_role(kind, role)
    return _OF_KINDS[kind] if effective is None else _OF_ROLES[effective]


def roles_with(permission: Permission) -> tuple[Role, ...]:
    """The roles that have a permission; never empty, for `ADMIN` has all."""
    return tuple(role for role in Role if permission in _OF_ROLES[role])


def roles_text(permission: Permission) -> str:
    """The roles that have a permission, as a sentence names them: `operator or admin`."""
    *others, last = (role.value for role in roles_with(permission))
    return f"{', '.join(others)} or {last}" if others else last
