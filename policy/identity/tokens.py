"""Tokens of callers: JWTs as JWS in compact form (RFC 7515, 7519, 8725). What they must be, in order of cost.

`read_token` reads what a token says, `fault_of` judges its times, `is_signed_by` its signature. Only what all three
accept may be believed. Nothing here keeps or shows a token.
"""

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from policy.identity.providers import Wire
from policy.identity.public_keys import MAX_KID_CHARS

if TYPE_CHECKING:
    from jwt import PyJWK

ALGORITHMS = ("RS256", "ES256", "EdDSA")
TYPES = ("jwt", "at+jwt", "application/at+jwt")
"""The values of `typ` that are allowed, in lower case.

A provider signs logout tokens and others with the same keys (RFC 8725, 3.11)."""
MAX_TOKEN_CHARS = 8192
MAX_AUDIENCES = 16
MAX_SUBJECT_CHARS = 1024
MAX_ENTITY_CHARS = 255
LEEWAY_S = 60
"""The difference between a provider's clock and ours that is allowed for."""
_BUILT_KEYS = 256


class TokenError(ValueError):
    """The token is refused. Callers never learn why; the text names no value of it."""


@dataclass(frozen=True, slots=True)
class UnverifiedToken:
    """A token that is well-formed. Nobody may believe it yet."""

    text: str
    alg: str
    kid: str | None
    claims: Wire

    @property
    def issuer(self) -> str:
        return str(self.claims["iss"])

    @property
    def audiences(self) -> tuple[str, ...]:
        """The distinct audiences of the token, at least one."""
        aud = self.claims["aud"]
        return (aud,) if isinstance(aud, str) else tuple(dict.fromkeys(aud))

    @property
    def subject(self) -> str:
        return str(self.claims["sub"])

    @property
    def ends_at_s(self) -> float:
        """The time from which the token is refused, in seconds since 1970."""
        return float(self.claims["exp"]) + LEEWAY_S

    def entity(self, claim: str) -> str:
        """The external id in this member. TokenError unless it is text of at most `MAX_ENTITY_CHARS`."""
        entity = self.claims.get(claim)
        if not _is_text(entity, MAX_ENTITY_CHARS):
            raise TokenError("the claim of the entity is no short text")
        return str(entity)


def read_token(text: str, max_chars: int = MAX_TOKEN_CHARS) -> UnverifiedToken:
    """Read a token's header and claims. TokenError names the first rule that it breaks."""
    if len(text) > max_chars:
        raise TokenError("it is too long")
    if text.count(".") != 2:
        raise TokenError("it is not three parts with dots between them")
    header_text, claims_text, signature = text.split(".")
    if not signature:
        raise TokenError("it has no signature")
    header = _object(header_text)
    alg = header.get("alg")
    kid = header.get("kid")
    if alg not in ALGORITHMS:
        raise TokenError("its alg is not allowed")
    if "crit" in header or "b64" in header:
        raise TokenError("it has header members that must be understood")
    if str(header.get("typ", TYPES[0])).lower() not in TYPES:
        raise TokenError("its typ is that of another kind of token")
    if kid is not None and not _is_text(kid, MAX_KID_CHARS):
        raise TokenError("its kid is no short text")
    claims = _object(claims_text)
    _check_names(claims)
    return UnverifiedToken(text, alg, kid, claims)


def fault_of(token: UnverifiedToken, now_s: float) -> str:
    """Return why the token does not hold at this time; empty if it does. One without an end never holds."""
    times = {name: token.claims[name] for name in ("exp", "nbf", "iat") if name in token.claims}
    if "exp" not in times or not all(map(_is_time, times.values())):
        return "its times are missing or no numbers"
    if now_s >= token.ends_at_s:
        return "it has expired"
    if any(times[name] > now_s + LEEWAY_S for name in ("nbf", "iat") if name in times):
        return "it is of the future"
    return ""


def key_for(token: UnverifiedToken, keys: Sequence[Wire]) -> Wire | None:
    """The key that the token names. Without a `kid`: the only key of its algorithm. None if there is no such key."""
    of_alg = [key for key in keys if key["alg"] == token.alg]
    candidates = of_alg if token.kid is None else [key for key in of_alg if key.get("kid") == token.kid]
    return candidates[0] if len(candidates) == 1 else None


def is_signed_by(token: UnverifiedToken, key: Wire) -> bool:
    """Return whether the token was signed with this key, one of `usable_keys`. It takes up to half a millisecond."""
    # Imported here, because it takes 5 MB, and a worker without identity providers must not pay for it.
    from jwt import PyJWTError
    from jwt.api_jws import decode_complete

    try:
        decode_complete(token.text, _built(tuple(key.items())), algorithms=[key["alg"]])
    except (PyJWTError, ValueError):
        return False
    return True


@lru_cache(_BUILT_KEYS)
def _built(members: tuple[tuple[str, str], ...]) -> "PyJWK":
    from jwt import PyJWK

    return PyJWK(dict(members))


def _object(segment: str) -> Wire:
    """The JSON object of a segment. TokenError if it is no object, or names a member twice, at any level."""
    try:
        data = base64.b64decode(segment + "=" * (-len(segment) % 4), altchars="-_", validate=True)
        members = json.loads(data.decode(), object_pairs_hook=_members, parse_constant=_refuse)
    except TokenError:
        raise
    except (ValueError, RecursionError):
        raise TokenError("it is no JSON in base64url") from None
    if not isinstance(members, dict):
        raise TokenError("it is no object")
    return members


def _members(pairs: list[tuple[str, Any]]) -> Wire:
    members = dict(pairs)
    if len(members) != len(pairs):  # parsers disagree about which of them counts
        raise TokenError("it names a member twice")
    return members


def _refuse(_constant: str) -> Any:
    raise TokenError("it holds a number that is not in JSON")


def _check_names(claims: Wire) -> None:
    aud = claims.get("aud")
    audiences = [aud] if isinstance(aud, str) else aud
    if not isinstance(audiences, list) or not 0 < len(audiences) <= MAX_AUDIENCES:
        raise TokenError("its aud is missing, or names too many")
    if not all(isinstance(audience, str) for audience in audiences):
        raise TokenError("its aud is no text")
    if not isinstance(claims.get("iss"), str):
        raise TokenError("its iss is no text")
    if not _is_text(claims.get("sub"), MAX_SUBJECT_CHARS):
        raise TokenError("its sub is no short text")


def _is_text(value: Any, longest: int) -> bool:
    """Return whether it is text of 1 to `longest` characters. A lone surrogate, which JSON can spell, is none."""
    is_text = isinstance(value, str) and 0 < len(value) <= longest
    return is_text and not any("\ud800" <= char <= "\udfff" for char in value)


def _is_time(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and abs(value) < 1e15 and math.isfinite(value)
