"""Fetches the public keys of an identity provider: from its JWKS, which its discovery document may name.

See docs/reference/management-api.md#identity-provider.
"""

from typing import Any, Protocol

import orjson

from control.records.identity.documents import Document
from control.records.identity.providers import FetchedKeys
from policy.identity.public_keys import usable_keys

DISCOVERY_PATH = "/.well-known/openid-configuration"


class Documents(Protocol):
    """Gets documents under the egress rules. Satisfied by `IssuerClient`."""

    async def get(self, url: str) -> Document: ...

    async def close(self) -> None: ...


def discovery_url(issuer: str) -> str:
    """The URL of an issuer's discovery document (OpenID Connect Discovery 1.0, section 4)."""
    return issuer.removesuffix("/") + DISCOVERY_PATH


async def fetch_keys(documents: Documents, issuer: str, jwks_url: str | None) -> FetchedKeys:
    """Fetch the usable keys. Errors name the field that leads to them, and quote nothing that was fetched."""
    if jwks_url is None:
        url, error = await _jwks_url(documents, issuer)
        if error:
            return FetchedKeys(None, f"issuer: its discovery document {error}")
        return await _keys_at(documents, url, "issuer: the jwks_uri of its discovery document")
    return await _keys_at(documents, jwks_url, "jwks_url:")


async def _keys_at(documents: Documents, url: str, place: str) -> FetchedKeys:
    document = await documents.get(url)
    if document.error:
        return FetchedKeys(None, f"{place} cannot be fetched: {document.error}")
    keys = usable_keys(_decoded(document.body))
    if keys is None:
        return FetchedKeys(None, f"{place} is no JSON object with a list of keys")
    if not keys:
        return FetchedKeys(None, f"{place} has no key that can be used: RSA of 2048 to 4096 bits, P-256 or Ed25519")
    return FetchedKeys(keys)


async def _jwks_url(documents: Documents, issuer: str) -> tuple[str, str]:
    """The `jwks_uri` of the issuer's discovery document, and what went wrong."""
    document = await documents.get(discovery_url(issuer))
    if document.error:
        return "", f"cannot be fetched: {document.error}"
    metadata = _decoded(document.body)
    if not isinstance(metadata, dict):
        return "", "is no JSON object"
    if metadata.get("issuer") != issuer:  # section 4.3: else anybody's document could stand for this issuer
        return "", "is that of another issuer: its member issuer must be the same text"
    url = metadata.get("jwks_uri")
    return (url, "") if isinstance(url, str) else ("", "has no jwks_uri")


def _decoded(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except ValueError:
        return None
