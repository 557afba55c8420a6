"""The console's sessions, what its visitors see and find, and its calls to the proxy. Values only; times are epoch
milliseconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from control.records.policy import KeyRecord, PresentedKey
from policy.credentials import KeyKind


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One login of a browser. `digest`: of its token; `sealed_key`: the API key, which only the token opens.

    `person`: JSON of whoever logged in without a key; `workspace_id` and `role` are then None until they are chosen.
    """

    digest: str
    key_digest: str
    sealed_key: str = field(repr=False)
    created_at_ms: int
    expires_at_ms: int
    person: str | None = None
    workspace_id: str | None = None
    role: str | None = None


@dataclass(frozen=True, slots=True)
class KeyOfSession:
    """The key that logged in, as it is now, or the person. `group_id`: None for a workspace key."""

    presented: PresentedKey
    name: str | None
    group_id: str | None


@dataclass(frozen=True, slots=True)
class NamedGroup:
    """A group as its own people know it: without limits, and without its place in the tree."""

    id: str
    external_entity_id: str
    name: str | None


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """The selection of a workspace's keys for a list; None is no filter.

    `part`: of the name, or the beginning of the prefix. `external_entity_id`: of the group that has the key. `newest`:
    names are looked through in so many.
    """

    part: str | None = None
    kind: KeyKind | None = None
    external_entity_id: str | None = None
    newest: int | None = None

    def admits(self, key: Any) -> bool:
        """Return whether kind and group of a key's row are those that are selected."""
        is_kind = self.kind is None or key.kind == self.kind
        return is_kind and self.external_entity_id in (None, key.external_entity_id)

    @property
    def is_of_groups(self) -> bool:
        return self.kind is KeyKind.FEDERATED


@dataclass(frozen=True, slots=True)
class NamedEndpoint:
    """An endpoint without its target."""

    id: str
    slug: str


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key and its group: None for a key of the workspace itself."""

    record: KeyRecord
    group: NamedGroup | None


@dataclass(frozen=True, slots=True)
class InferenceCall:
    """A call that may be sent. `headers`: names in lower case; `body`: JSON, or None."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None = field(repr=False)
    api_key: str = field(repr=False)
    is_look: bool = False
    """A page shows what it answers; it calls no model, and counts in no figure."""


class LoginProviderError(Exception):
    """The identity provider of the console cannot be used. The text says why, without secrets and addresses."""


@dataclass(frozen=True, slots=True)
class ProviderEndpoints:
    """The endpoints of a provider, as its discovery document names them.

    `posts_secret`: the secret goes in the form, not in a header. `names_itself`: each of its answers has its `iss`.
    """

    authorization: str
    token: str
    jwks: str
    end_session: str | None
    posts_secret: bool
    names_itself: bool


@dataclass(frozen=True, slots=True)
class LoginAttempt:
    """A login that a browser has begun. `replaced`: the digest of the session that ends with it."""

    state: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)
    redirect_uri: str
    return_to: str
    replaced: str | None
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class Membership:
    """The values of a claim that gave a person roles, as they were at the login."""

    claim: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkspaceChoice:
    """A workspace that a person may choose, and the role there."""

    workspace_id: str
    workspace_name: str
    role: str
