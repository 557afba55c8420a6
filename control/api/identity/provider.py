"""`/v1/gateway/identity_provider`: the provider whose tokens callers of the workspace's groups may present.

See docs/reference/management-api.md#identity-provider.
"""

from typing import Annotated

from pydantic import Field

from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import NO_NUL, DeletedV1, RequestV1, ResponseV1, TimeText
from control.records.identity.providers import IdentityProviderRecord, ProviderSettings
from control.resources.identity import providers
from policy.hosts import MAX_URL_CHARS
from policy.identity.providers import MAX_NAME_CHARS
from policy.keys.permissions import Permission

_Text = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS, json_schema_extra=NO_NUL)]


class PutIdentityProviderRequestV1(RequestV1):
    """The identity provider of the workspace. It replaces the present one."""

    issuer: Annotated[str, Field(min_length=1, max_length=MAX_URL_CHARS, json_schema_extra=NO_NUL)] = Field(
        examples=["https://login.example.com/acme"], description="The `iss` of its tokens, letter for letter."
    )
    audience: _Text = Field(examples=["tollgate"], description="An `aud` of its tokens.")
    jwks_url: Annotated[str, Field(min_length=1, max_length=MAX_URL_CHARS)] | None = Field(
        None,
        examples=["https://login.example.com/acme/keys"],
        description="Where its public keys are; publicly reachable HTTPS. By default the issuer's discovery document"
        " says where.",
    )
    entity_claim: _Text = Field(
        examples=["org_id"], description="The member of its tokens that holds the external id of a group."
    )


class ProviderKeyV1(ResponseV1):
    """A public key that verifies tokens."""

    kid: str | None
    alg: str


class IdentityProviderV1(ResponseV1):
    """The identity provider, and what is known of its keys. While `keys` is null, its tokens are answered 503."""

    issuer: str
    audience: str
    jwks_url: str | None
    entity_claim: str
    keys: list[ProviderKeyV1] | None = Field(description="The usable keys; null until they could be fetched.")
    keys_fetched_at: TimeText | None
    last_error: str | None = Field(description="Why the last attempt to fetch the keys failed; null if it succeeded.")
    created_at: TimeText
    updated_at: TimeText


class DeletedIdentityProviderV1(DeletedV1):
    """The deleted identity provider."""

    issuer: str
    audience: str


async def _put(request: ApiRequest) -> IdentityProviderV1:
    body = request.body_as(PutIdentityProviderRequestV1)
    settings = ProviderSettings(body.issuer, body.audience, body.entity_claim, body.jwks_url)
    parts = request.dependencies
    await providers.check_urls(parts.names, settings)
    documents = parts.key_refresher.documents
    return _response(await providers.put_provider(request.store, documents, request.workspace_id, settings))


async def _get(request: ApiRequest) -> IdentityProviderV1:
    return _response(await providers.read_provider(request.store, request.workspace_id))


async def _delete(request: ApiRequest) -> DeletedIdentityProviderV1:
    record = await providers.remove_provider(request.store, request.workspace_id)
    return DeletedIdentityProviderV1(issuer=record.issuer, audience=record.audience)


def _response(record: IdentityProviderRecord) -> IdentityProviderV1:
    return IdentityProviderV1(**providers.shown_provider(record))


_PATH = "/v1/gateway/identity_provider"
_ONE = IdentityProviderV1
_BODY = PutIdentityProviderRequestV1
_GONE = DeletedIdentityProviderV1
OPERATIONS = (
    Operation(
        "PUT", _PATH, _put, "Set the identity provider", _ONE, body=_BODY, errors=(400, 409), needs=Permission.TRUST
    ),
    Operation("GET", _PATH, _get, "Get the identity provider", _ONE, errors=(404,), needs=Permission.TRUST),
    Operation("DELETE", _PATH, _delete, "Delete the identity provider", _GONE, errors=(404,), needs=Permission.TRUST),
)
