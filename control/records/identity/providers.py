"""Identity providers of workspaces. Values only; times are epoch milliseconds."""

from dataclasses import dataclass

import orjson

from policy.identity.providers import IdentityProviderRow, Wire, provider_id


@dataclass(frozen=True, slots=True)
class IdentityProviderRecord:
    """The provider whose tokens name groups of the workspace, and what control knows of its keys."""

    workspace_id: str
    id: str
    issuer: str
    audience: str
    entity_claim: str
    jwks_url: str | None
    """None: the issuer's discovery document names it."""
    created_at_ms: int
    updated_at_ms: int
    key_set: str | None = None
    """The usable keys as JSON text; None until they could be fetched."""
    keys_fetched_at_ms: int | None = None
    last_error: str | None = None
    """The reason why the last attempt to fetch the keys failed; None if it succeeded."""
    attempted_at_ms: int = 0
    """The time at which the last attempt to fetch the keys began."""
    ended_at_ms: int = 0
    """The time at which that attempt ended; before its beginning while it is under way."""

    @property
    def keys(self) -> tuple[Wire, ...] | None:
        return None if self.key_set is None else tuple(orjson.loads(self.key_set))

    @property
    def row(self) -> IdentityProviderRow:
        """The provider as proxies have it."""
        names = (self.workspace_id, self.issuer, self.audience, self.entity_claim)
        return IdentityProviderRow(self.id, *names, self.keys)


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """A provider as its owner describes it."""

    issuer: str
    audience: str
    entity_claim: str
    jwks_url: str | None = None

    @property
    def id(self) -> str:
        return provider_id(self.issuer, self.audience)


@dataclass(frozen=True, slots=True)
class FetchedKeys:
    """The outcome of an attempt to fetch keys. `error`: empty if it succeeded; quotes nothing that was fetched."""

    keys: tuple[Wire, ...] | None
    error: str = ""

    @property
    def key_set(self) -> str | None:
        """The keys as JSON text in an order of our own: a provider that reorders them changes nothing."""
        return None if self.keys is None else orjson.dumps(sorted(self.keys, key=orjson.dumps)).decode()
