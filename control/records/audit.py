"""The records of the audit trail. Values only; times are epoch milliseconds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CLI = "cli"
Shown = Mapping[str, Any]
"""A resource as the API shows it: JSON values, or JSON that is encoded already (`orjson.Fragment`)."""


@dataclass(frozen=True, slots=True)
class Actor:
    """The author of a change: the prefix of a workspace key, or the command line on the machine itself."""

    name: str = CLI
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one resource. `action` like `endpoint.update`, `resource` like `endpoints/ep_…`.

    `before` None: the resource was made; `after` None: it was deleted. Neither contains a value of a secret.
    """

    action: str
    resource: str
    before: Shown | None
    after: Shown | None


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One entry of the trail. `before`, `after`: JSON text."""

    id: str
    workspace_id: str
    timestamp_ms: int
    actor: str
    action: str
    resource: str
    before: str | None
    after: str | None
    request_id: str | None


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """A selection from a workspace's trail: the entries of `[start_ms, end_ms)`. None is no filter."""

    workspace_id: str
    start_ms: int | None = None
    end_ms: int | None = None
    actor: str | None = None
