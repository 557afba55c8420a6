"""Logins under way: what a browser keeps, sealed, between its way to the identity provider and back.

The cookie of a session is `SameSite=Strict`, so a browser does not send it when the provider leads it back. What was
begun is therefore in a cookie of its own, which only this control plane can make and read.

See docs/reference/console.md#people.
"""

import base64
import hashlib
import re
import secrets
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from control.edges.sql.store import now_ms
from control.records.console import LoginAttempt
from control.records.ids import new_nonce
from policy.identity.login_claims import equals_text
from policy.sealing import TokenSealer

VALID_MS = 600_000
HOME = "/console/overview"
MAX_RETURN_CHARS = 1024
_RANDOM_BYTES = 32
_RETURN = re.compile(r"/console/([a-z]+)(\?[!-~]*)?")


class AttemptSealer:
    """Makes the cookie's text of a login, and reads it."""

    def __init__(self, secret_keys: Sequence[bytes]) -> None:
        self._tokens = TokenSealer(secret_keys, "tollgate console login")

    def seal(self, attempt: LoginAttempt) -> str:
        values = [getattr(attempt, name) for name in LoginAttempt.__dataclass_fields__]
        return self._tokens.seal(values, new_nonce())

    def open(self, text: str, state: str) -> LoginAttempt | None:
        """The login that this browser began with this state; None for any other text, state, or after its time."""
        values = self._tokens.open(text) if text.isascii() else None
        if values is None or len(values) != len(LoginAttempt.__dataclass_fields__):
            return None
        attempt = LoginAttempt(*values)
        is_current = now_ms() < attempt.expires_at_ms
        return attempt if equals_text(state, attempt.state) and is_current else None


def new_attempt(redirect_uri: str, return_to: str, replaced: str | None) -> LoginAttempt:
    """A login that begins now, with values that nobody can guess."""
    return LoginAttempt(
        state=secrets.token_urlsafe(_RANDOM_BYTES),
        nonce=secrets.token_urlsafe(_RANDOM_BYTES),
        verifier=secrets.token_urlsafe(_RANDOM_BYTES),
        redirect_uri=redirect_uri,
        return_to=return_to,
        replaced=replaced,
        expires_at_ms=now_ms() + VALID_MS,
    )


def challenge_of(attempt: LoginAttempt) -> str:
    """The S256 challenge of PKCE (RFC 7636, 4.2)."""
    digest = hashlib.sha256(attempt.verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def own_path(text: str, is_page: Callable[[str], bool]) -> str:
    """The page of the console that a login leads to: `text` if it is one of ours, else the first one."""
    match = _RETURN.fullmatch(text) if len(text) <= MAX_RETURN_CHARS else None
    is_ours = match is not None and is_page(match[1]) and not urlsplit(text).netloc and "\\" not in text
    return text if is_ours else HOME
