"""An identity provider of a workspace as proxies have it: its issuer, its audience and its public keys.

See docs/reference/management-api.md#identity-provider.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

Wire = dict[str, Any]
MAX_NAME_CHARS = 255
"""The longest audience, and the longest name of a claim."""


@dataclass(frozen=True, slots=True)
class IdentityProviderRow:
    """The provider whose tokens name groups of the workspace.

    `entity_claim`: the member of a token that holds a group's external id.
    """

    id: str
    workspace_id: str
    issuer: str
    audience: str
    entity_claim: str
    keys: tuple[Wire, ...] | None
    """The keys, in the form that `usable_keys` returns; None until they could be fetched."""

    def to_wire(self) -> Wire:
        return {
            "workspace_id": self.workspace_id,
            "issuer": self.issuer,
            "audience": self.audience,
            "entity_claim": self.entity_claim,
            "keys": None if self.keys is None else list(self.keys),
        }

    @classmethod
    def from_wire(cls, id: str, body: Wire) -> "IdentityProviderRow":
        keys = body["keys"]
        names = (body["workspace_id"], body["issuer"], body["audience"], body["entity_claim"])
        return cls(id, *names, None if keys is None else tuple(keys))


def provider_id(issuer: str, audience: str) -> str:
    """The id of the only provider with this issuer and this audience: tokens name both, and nothing else of it."""
    text = f"{len(issuer)}:{issuer}{audience}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
