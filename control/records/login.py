"""The console's login by OpenID Connect: the provider's endpoints, a login under way, whoever logged in. Values only."""

from dataclasses import dataclass, field


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
