"""`/v1/gateway/groups/{group_id}/api_keys` and `/v1/api_keys`: keys are shown once, then addressed by prefix."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from control.api.protocol.encoding import Encoded
from control.api.protocol.lists import Listing, Position, encoder, list_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import (
    DeletedV1,
    Name,
    PageQueryV1,
    PaginationResponseV1,
    RequestV1,
    ResponseV1,
    TimeText,
    WholeListQueryV1,
    original_name,
)
from control.records.policy import KeyRecord
from control.records.times import time_text
from control.resources import keys
from control.resources.changes.shown import shown_key
from control.resources.keys import KeyOwner
from policy.credentials import REGISTERED_PATTERN, KeyKind
from policy.keys.permissions import Permission

_Kind = Literal["WORKSPACE_MANAGE_ALL", "WORKSPACE_INVOKE", "WORKSPACE_EXPORT_METRICS"]
_REGISTERED: dict[str, Any] = {"pattern": f"^{REGISTERED_PATTERN}$"}
"""The pattern for the schema; `policy.credentials.unregistrable` validates, with a better message."""


class CreateFederatedKeyRequestV1(RequestV1):
    """A new key of a group."""

    name: Name | None = None


class RegisterKeyRequestV1(RequestV1):
    """A key of one's own for a group. It is stored as a digest only, and never shown."""

    key: Annotated[str, Field(json_schema_extra=_REGISTERED, description="Not in the form of a JWT, nor `tg_…`.")]
    name: Name | None = None


class CreateWorkspaceKeyRequestV1(RequestV1):
    """A new key of the workspace."""

    type: _Kind
    name: Name | None = None
    model_ids: None = Field(None, description="Null: a key is good for the whole workspace.")
    team_id: None = Field(None, description="Null: a workspace has one team.")


class WorkspaceKeysQueryV1(WholeListQueryV1):
    """Parameters of the list of workspace keys."""

    created_by_me: Annotated[
        Literal["false"] | None, Field(description="Only `false`: nobody owns a key, so all are listed.")
    ] = None


class CreatedFederatedKeyV1(ResponseV1):
    """The new key. `api_key` is shown only here."""

    api_key: str
    prefix: str
    name: str | None
    created_at: TimeText


class CreatedWorkspaceKeyV1(CreatedFederatedKeyV1):
    """The new key. `api_key` is shown only here."""

    type: _Kind


class RegisteredKeyV1(ResponseV1):
    """The key that was registered: `prefix` is its name in lists and events."""

    ok: Literal[True]
    prefix: str
    name: str | None


class FederatedKeyV1(ResponseV1):
    """A group's key, identified by its public prefix."""

    prefix: str
    name: str | None
    created_at: TimeText
    last_used_at: TimeText | None


class WorkspaceKeyV1(FederatedKeyV1):
    """A workspace key, identified by its public prefix."""

    type: _Kind


class FederatedKeysResponseV1(ResponseV1):
    """One page of a group's keys."""

    items: list[FederatedKeyV1]
    pagination: PaginationResponseV1


class WorkspaceKeysResponseV1(ResponseV1):
    """One page of the workspace's own keys."""

    items: list[WorkspaceKeyV1]
    keys: list[WorkspaceKeyV1] = original_name("keys")
    pagination: PaginationResponseV1


class RevokedKeyV1(DeletedV1):
    """The prefix of the key that was revoked."""

    prefix: str


class RevokedFederatedKeyV1(RevokedKeyV1):
    """The prefix of the key that was revoked, and its group."""

    group_id: str


async def _post_federated(request: ApiRequest) -> CreatedFederatedKeyV1:
    name = request.body_as(CreateFederatedKeyRequestV1).name
    key, record = await keys.mint_key(request.store, _owner(request), KeyKind.FEDERATED, name)
    return CreatedFederatedKeyV1(
        api_key=key, prefix=record.prefix, name=record.name, created_at=time_text(record.created_at_ms)
    )


async def _register(request: ApiRequest) -> RegisteredKeyV1:
    body = request.body_as(RegisterKeyRequestV1)
    record = await keys.register_key(request.store, _owner(request), body.key, body.name)
    return RegisteredKeyV1(ok=True, prefix=record.prefix, name=record.name)


async def _post_own(request: ApiRequest) -> CreatedWorkspaceKeyV1:
    body = request.body_as(CreateWorkspaceKeyRequestV1)
    key, record = await keys.mint_key(request.store, _owner(request), KeyKind(body.type), body.name)
    created_at = time_text(record.created_at_ms)
    return CreatedWorkspaceKeyV1(
        api_key=key, prefix=record.prefix, name=record.name, created_at=created_at, type=body.type
    )


async def _list_federated(request: ApiRequest) -> Encoded:
    return await _list(request, _federated)


async def _list_own(request: ApiRequest) -> Encoded:
    return await _list(request, _workspace, "keys")


async def _get_federated(request: ApiRequest) -> FederatedKeyV1:
    return _federated(await _get(request))


async def _get_own(request: ApiRequest) -> WorkspaceKeyV1:
    return _workspace(await _get(request))


async def _delete_federated(request: ApiRequest) -> RevokedFederatedKeyV1:
    return RevokedFederatedKeyV1(prefix=await _revoked(request), group_id=request.path["group_id"])


async def _delete_own(request: ApiRequest) -> RevokedKeyV1:
    return RevokedKeyV1(prefix=await _revoked(request))


async def _revoked(request: ApiRequest) -> str:
    prefix = request.path["prefix"]
    await keys.revoke_key(request.store, _owner(request), prefix)
    return prefix


def _owner(request: ApiRequest) -> KeyOwner:
    return KeyOwner(request.workspace_id, request.path.get("group_id"))


async def _list(request: ApiRequest, show: Callable[[KeyRecord], BaseModel], name: str | None = None) -> Encoded:
    owner = _owner(request)

    async def fetch(at: Position[KeyRecord]) -> Sequence[KeyRecord]:
        after = tuple(at.after) if at.after else None
        return await keys.read_keys(request.store, owner, after, at.limit)

    kind = f"keys {owner.group_id or ''}"
    listing = Listing(kind, fetch, lambda record: [record.created_at_ms, record.prefix], encoder(show), name=name)
    return await list_page(request, listing)


async def _get(request: ApiRequest) -> KeyRecord:
    return await keys.read_key(request.store, _owner(request), request.path["prefix"])


def _federated(record: KeyRecord) -> FederatedKeyV1:
    return FederatedKeyV1(**shown_key(record))


def _workspace(record: KeyRecord) -> WorkspaceKeyV1:
    return WorkspaceKeyV1(**shown_key(record))


_OWN = "/v1/api_keys"
_FEDERATED = "/v1/gateway/groups/{group_id}/api_keys"
_ONE_OWN = f"{_OWN}/{{prefix}}"
_REGISTER = f"{_FEDERATED}/register"
_ONE_FEDERATED = f"{_FEDERATED}/{{prefix}}"
_MINT = CreateFederatedKeyRequestV1
_BRING = RegisterKeyRequestV1
_CREATE = CreateWorkspaceKeyRequestV1
_PAGE = PageQueryV1
_OWN_PAGE = WorkspaceKeysQueryV1
_MADE = CreatedFederatedKeyV1
_SEVERAL = FederatedKeysResponseV1
_REVOKED = RevokedFederatedKeyV1
_MADE_OWN = CreatedWorkspaceKeyV1
_SEVERAL_OWN = WorkspaceKeysResponseV1
OPERATIONS = (
    Operation(
        *("POST", _FEDERATED, _post_federated, "Mint a federated key", _MADE),
        body=_MINT,
        errors=(400, 404),
        needs=Permission.KEYS,
    ),
    Operation(
        *("POST", _REGISTER, _register, "Register a key", RegisteredKeyV1),
        body=_BRING,
        errors=(400, 404, 409),
        needs=Permission.KEYS,
    ),
    Operation(
        *("GET", _FEDERATED, _list_federated, "List a group's keys", _SEVERAL),
        query=_PAGE,
        errors=(400, 404),
        needs=Permission.READ,
    ),
    Operation(
        "GET", _ONE_FEDERATED, _get_federated, "Get a group's key", FederatedKeyV1, errors=(404,), needs=Permission.READ
    ),
    Operation(
        *("DELETE", _ONE_FEDERATED, _delete_federated, "Revoke a group's key", _REVOKED),
        errors=(404,),
        needs=Permission.KEYS,
    ),
    Operation(
        *("POST", _OWN, _post_own, "Create a workspace key", _MADE_OWN),
        body=_CREATE,
        errors=(400,),
        tag="Keys",
        needs=Permission.KEYS,
    ),
    Operation(
        *("GET", _OWN, _list_own, "List workspace keys", _SEVERAL_OWN),
        query=_OWN_PAGE,
        errors=(400,),
        tag="Keys",
        needs=Permission.READ,
    ),
    Operation(
        *("GET", _ONE_OWN, _get_own, "Get a workspace key", WorkspaceKeyV1),
        errors=(404,),
        tag="Keys",
        needs=Permission.READ,
    ),
    Operation(
        *("DELETE", _ONE_OWN, _delete_own, "Revoke a workspace key", RevokedKeyV1),
        errors=(404,),
        tag="Keys",
        needs=Permission.KEYS,
    ),
)
