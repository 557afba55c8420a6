"""The records of the audit trail. Values only; times are epoch milliseconds."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from policy.credentials import PREFIX_CHARS

CLI = "cli"
PERSON_PREFIX = "person_"
MAX_NAME_CHARS = 255
"""The most characters of an address and of an issuer in a name."""
MAX_ACTOR_CHARS = 2 * MAX_NAME_CHARS + len(" ()")
Shown = Mapping[str, Any]
"""A resource as the API shows it: JSON values, or JSON that is encoded already (`orjson.Fragment`)."""


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who logged in at an identity provider. `email`: one that the provider has verified."""

    issuer: str
    subject: str
    email: str | None = None

    @property
    def name(self) -> str:
        """The name in the audit trail, such as `ada@example.com (https://login.example)`. Never a key's prefix."""
        who = self.email or self.subject
        return f"{_plain(who)} ({_plain(self.issuer)})"

    @property
    def prefix(self) -> str:
        """The public name where keys have their prefix: the same at each login, and nobody's address."""
        return PERSON_PREFIX + hashlib.sha256(f"{self.issuer}\0{self.subject}".encode()).hexdigest()[:PREFIX_CHARS]


def _plain(text: str) -> str:
    """Replace what could make an address end like another's issuer, or a reader see another text."""
    return "".join(char if char.isprintable() and char not in "() " else "?" for char in text[:MAX_NAME_CHARS])


@dataclass(frozen=True, slots=True)
class Actor:
    """The author of a change: the prefix of a workspace key, a person's name, or the command line on the machine."""

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
