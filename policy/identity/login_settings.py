"""Settings of the console's login by OpenID Connect: the provider, and which value of which claim makes somebody what.

See docs/reference/console.md#people.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from policy.keys.roles import Role

MAX_PAIRS = 500
MAX_CLAIM_CHARS = 255
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_COMMA = re.compile(r"(?<!\\),")
_DOT = re.compile(r"(?<!\\)\.")


@dataclass(frozen=True, slots=True)
class RolePair:
    """Whoever has this value in the claim has this role in this workspace, which is an id or a name."""

    value: str
    workspace: str
    role: Role

    def is_of(self, workspace_id: str, workspace_name: str) -> bool:
        return self.workspace in (workspace_id, workspace_name)


@dataclass(frozen=True, slots=True)
class LoginSettings:
    """The identity provider of the console. `client_secret` empty: a public client, which has PKCE alone."""

    issuer: str
    client_id: str
    role_claim: str
    pairs: tuple[RolePair, ...]
    client_secret: str = field(default="", repr=False)

    def pairs_of(self, values: Iterable[str]) -> Iterator[RolePair]:
        """Yield the pairs of these values of the claim, each once."""
        having = frozenset(values)
        yield from dict.fromkeys(pair for pair in self.pairs if pair.value in having)


def issuer_url(text: str) -> str:
    """Return the issuer as it is written, a slash at its end included: tokens name it letter by letter."""
    try:
        parts = urlsplit(text)
        is_plain = bool(parts.hostname) and "@" not in parts.netloc and not parts.query and not parts.fragment
    except ValueError:
        is_plain = False
    if not is_plain or not text.isascii() or not text.isprintable() or not is_secure_url(text):
        raise ValueError("expected the issuer's https:// URL (http:// only for this host itself), without a query")
    return text


def is_secure_url(text: str) -> bool:
    """Return whether a URL keeps what is sent to it from others: by TLS, or because it is this host."""
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and (
            parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
        )
    except ValueError:
        return False


def claim_name(text: str) -> str:
    """Return the name of the claim, checked."""
    if len(text) > MAX_CLAIM_CHARS or not all(claim_path(text)):
        raise ValueError(r"expected a claim such as groups or realm_access.roles; a dot of a name is written \.")
    return text


def claim_path(text: str) -> tuple[str, ...]:
    r"""The names that lead to a claim: a dot goes into an object, `\.` is a dot, and a URL is one name."""
    if "://" in text:
        return (text,)
    return tuple(name.replace(r"\.", ".") for name in _DOT.split(text))


def role_pairs(text: str) -> tuple[RolePair, ...]:
    r"""The pairs of `value=workspace:role`, separated by commas; `\,` is a comma within a value."""
    texts = [part.strip() for part in _COMMA.split(text) if part.strip()]
    if not 0 < len(texts) <= MAX_PAIRS:
        raise ValueError(f"expected 1 to {MAX_PAIRS} pairs of value=workspace:role, comma-separated")
    return tuple(_pair(number, part.replace(r"\,", ",")) for number, part in enumerate(texts, 1))


def _pair(number: int, text: str) -> RolePair:
    value, _, right = text.rpartition("=")
    workspace, _, role = right.rpartition(":")
    if not value.strip() or not workspace.strip():
        raise ValueError(f"pair {number}: expected value=workspace:role, such as platform-team=acme:operator")
    try:
        return RolePair(value.strip(), workspace.strip(), Role(role.strip()))
    except ValueError:
        raise ValueError(f"pair {number}: the role must be one of {', '.join(Role)}") from None
