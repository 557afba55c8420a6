"""`/v1/api_keys`: keys of a workspace are shown once, then addressed by prefix."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from control.api.protocol.encoding import Encoded
from control.api.protocol.lists import Listing, Position, encoder, list_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import (
    DeletedV1,
    Name,
    PaginationResponseV1,
    RequestV1,
    ResponseV1,
    RoleName,
    TimeText,
    WholeListQueryV1,
    original_name,
)
from control.records.policy import KeyRecord
from control.records.times import time_text
from control.resources import keys
from control.resources.changes.shown import shown_key
from control.resources.keys import KeyOwner, NewWorkspaceKey
from policy.credentials import KeyKind
from policy.keys.permissions import Permission
from policy.keys.roles import optional_role

_Kind = Literal["WORKSPACE_MANAGE_ALL", "WORKSPACE_INVOKE", "WORKSPACE_EXPORT_METRICS"]


class CreateWorkspaceKeyRequestV1(RequestV1):
    """A new key of the workspace."""

    type: _Kind
    role: RoleName | None = Field(
        None, description="Only of type `WORKSPACE_MANAGE_ALL`; null: `admin`. At most what the caller may do."
    )
    name: Name | None = None
    model_ids: None = Field(None, description="Null: a key is good for the whole workspace.")
    team_id: None = Field(None, description="Null: a workspace has one team.")


class WorkspaceKeysQueryV1(WholeListQueryV1):
    """Parameters of the list of workspace keys."""

    created_by_me: Annotated[
        Literal["false"] | None, Field(description="Only `false`: nobody owns a key, so all are listed.")
    ] = None


class CreatedWorkspaceKeyV1(ResponseV1):
    """The new key. `api_key` is shown only here."""

    api_key: str
    prefix: str
    name: str | None
    created_at: TimeText
    type: _Kind
    role: RoleName | None


class WorkspaceKeyV1(ResponseV1):
    """A workspace key, identified by its public prefix."""

    prefix: str
    name: str | None
    created_at: TimeText
    last_used_at: TimeText | None
    type: _Kind
    role: RoleName | None = Field(description="Null: what the type may do; of `WORKSPACE_MANAGE_ALL` it is `admin`.")


class WorkspaceKeysResponseV1(ResponseV1):
    """One page of the workspace's own keys."""

    items: list[WorkspaceKeyV1]
    keys: list[WorkspaceKeyV1] = original_name("keys")
    pagination: PaginationResponseV1


class RevokedKeyV1(DeletedV1):
    """The prefix of the key that was revoked."""

    prefix: str


async def _post_own(request: ApiRequest) -> CreatedWorkspaceKeyV1:
    body = request.body_as(CreateWorkspaceKeyRequestV1)
    new = NewWorkspaceKey(KeyKind(body.type), body.name, optional_role(body.role))
    key, record = await keys.mint_key(request.store, request.workspace_id, new, request.caller.permissions)
    return CreatedWorkspaceKeyV1(
        api_key=key,
        prefix=record.prefix,
        name=record.name,
        created_at=time_text(record.created_at_ms),
        type=body.type,
        role=body.role,
    )


async def _list_own(request: ApiRequest) -> Encoded:
    owner = _owner(request)

    async def fetch(at: Position[KeyRecord]) -> Sequence[KeyRecord]:
        return await keys.read_keys(request.store, owner, tuple(at.after) if at.after else None, at.limit)

    listing = Listing(
        *("keys ", fetch, lambda record: [record.created_at_ms, record.prefix], encoder(_workspace)), name="keys"
    )
    return await list_page(request, listing)


async def _get_own(request: ApiRequest) -> WorkspaceKeyV1:
    return _workspace(await keys.read_key(request.store, _owner(request), request.path["prefix"]))


async def _delete_own(request: ApiRequest) -> RevokedKeyV1:
    prefix = request.path["prefix"]
    await keys.revoke_key(request.store, _owner(request), prefix, request.caller.permissions)
    return RevokedKeyV1(prefix=prefix)


def _owner(request: ApiRequest) -> KeyOwner:
    return KeyOwner(request.workspace_id)


def _workspace(record: KeyRecord) -> WorkspaceKeyV1:
    return WorkspaceKeyV1(**shown_key(record))


_OWN = "/v1/api_keys"
_ONE_OWN = f"{_OWN}/{{prefix}}"
_CREATE = CreateWorkspaceKeyRequestV1
_OWN_PAGE = WorkspaceKeysQueryV1
_MADE_OWN = CreatedWorkspaceKeyV1
_SEVERAL_OWN = WorkspaceKeysResponseV1
OPERATIONS = (
    Operation(
        *("POST", _OWN, _post_own, "Create a workspace key", _MADE_OWN),
        body=_CREATE,
        errors=(400, 409),
        needs=Permission.KEYS,
        creates=True,
    ),
    Operation(
        *("GET", _OWN, _list_own, "List workspace keys", _SEVERAL_OWN),
        query=_OWN_PAGE,
        errors=(400,),
        needs=Permission.READ,
    ),
    Operation(
        *("GET", _ONE_OWN, _get_own, "Get a workspace key", WorkspaceKeyV1),
        errors=(404,),
        needs=Permission.READ,
    ),
    Operation(
        *("DELETE", _ONE_OWN, _delete_own, "Revoke a workspace key", RevokedKeyV1),
        errors=(404,),
        needs=Permission.KEYS,
    ),
)
