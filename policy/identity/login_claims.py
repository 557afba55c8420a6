"""ID tokens of the console's login: what their claims must be, who they name, which values of the role claim they have.

See docs/reference/console.md#people.
"""

import hmac
from collections.abc import Mapping
from typing import Any

from policy.identity.login_settings import LoginSettings, claim_path

Claims = Mapping[str, Any]
MAX_VALUES = 2000
_GOOGLE = ("https://accounts.google.com", "accounts.google.com")
_ENTRA = "https://login.microsoftonline.com/"


def fault_of_claims(claims: Claims, settings: LoginSettings, nonce: str) -> str:
    """Return why this token is not the answer to this login; empty if it is. Signature and times are judged elsewhere.

    `claims` have an `iss` and a `sub` of text, and an `aud` of texts.
    """
    aud = claims["aud"]
    audiences = [aud] if isinstance(aud, str) else aud
    if not names_issuer(claims["iss"], settings.issuer):
        return "it is of another issuer than TOLLGATE_OIDC_ISSUER names"
    if settings.client_id not in audiences or (len(audiences) > 1 and "azp" not in claims):
        return "it was issued for another client"
    if "azp" in claims and claims["azp"] != settings.client_id:
        return "it was issued to another client"
    if not equals_text(claims.get("nonce"), nonce):
        return "it answers another login"
    return ""


def names_issuer(iss: Any, issuer: str) -> bool:
    """Return whether a text names the issuer, letter by letter. Google's tokens may leave out its scheme."""
    return iss == issuer or (issuer == _GOOGLE[0] and iss == _GOOGLE[1])


def equals_text(value: Any, text: str) -> bool:
    """Return whether a value of somebody else is our text; it takes the same time wherever they differ."""
    return isinstance(value, str) and hmac.compare_digest(value.encode("utf-8", "surrogatepass"), text.encode())


def role_values(claims: Claims, role_claim: str) -> tuple[str, ...] | None:
    """The values of the claim: a text, or a list of texts. None if the token has no such claim.

    An address counts only if the provider has verified it: people may write any address into some accounts.
    """
    if role_claim == "email" and claims.get("email_verified") is not True:
        return None
    value: Any = claims
    for name in claim_path(role_claim):
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    values = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(one for one in values[:MAX_VALUES] if isinstance(one, str) and one))


def is_left_out(claims: Claims, role_claim: str) -> bool:
    """Return whether the provider says that the claim is too large for the token, as Entra does of many groups."""
    elsewhere = claims.get("_claim_names")
    name = claim_path(role_claim)[0]
    is_named = isinstance(elsewhere, dict) and name in elsewhere
    return is_named or (name == "groups" and claims.get("hasgroups") in (True, "true"))


def verified_name(claims: Claims) -> str | None:
    """The address or sign-in name of a person, if nobody but the provider's administrators can choose it.

    Entra has no `email_verified`; the sign-in names of a tenant are in domains that it has verified.
    """
    name = claims.get("email") if claims.get("email_verified") is True else None
    if name is None and str(claims["iss"]).startswith(_ENTRA):
        name = claims.get("preferred_username")
    return name if isinstance(name, str) and name else None
