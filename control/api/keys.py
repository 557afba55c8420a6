"""`/v1/gateway/groups/{group_id}/api_keys` and `/v1/api_keys`: minted once in plaintext, then known by their prefix."""

from collections.abc import Callable, Sequence
from typing import Literal

from pydantic import BaseModel

from control.api.protocol.encoding import Encoded
from control.api.protocol.errors import not_found
from control.api.protocol.lists import Listing, Position, page_of, shown
from control.api.protocol.operations import Call, Operation
from control.api.protocol.schemas import (
    AnswerV1,
    FormV1,
    Name,
    PageQueryV1,
    PaginationResponseV1,
    TimeText,
    optional_time_text,
    time_text,
)
from control.edges.sql import key_rows
from control.edges.sql.key_rows import KeyRecord
from control.resources import keys
from control.resources.keys import Keyring
from policy.credentials import KeyKind

_Kind = Literal["WORKSPACE_MANAGE_ALL", "WORKSPACE_INVOKE", "WORKSPACE_EXPORT_METRICS"]


class CreateFederatedKeyRequestV1(FormV1):
    """A new key under a group."""

    name: Name | None = None


class CreateWorkspaceKeyRequestV1(FormV1):
    """A new key of the workspace."""

    type: _Kind
    name: Name | None = None


class CreatedFederatedKeyV1(AnswerV1):
    """The key itself, shown only here."""

    api_key: str
    prefix: str
    name: str | None
    created_at: TimeText


class CreatedWorkspaceKeyV1(CreatedFederatedKeyV1):
    """The key itself, shown only here."""

    type: _Kind


class FederatedKeyV1(AnswerV1):
    """A key by its public prefix."""

    prefix: str
    name: str | None
    created_at: TimeText
    last_used_at: TimeText | None


class WorkspaceKeyV1(FederatedKeyV1):
    """A key by its public prefix."""

    type: _Kind


class FederatedKeysResponseV1(AnswerV1):
    """One page of a group's keys."""

    items: list[FederatedKeyV1]
    pagination: PaginationResponseV1


class WorkspaceKeysResponseV1(AnswerV1):
    """One page of the workspace's own keys."""

    items: list[WorkspaceKeyV1]
    pagination: PaginationResponseV1


class RevokedKeyV1(AnswerV1):
    """The prefix of the key that was revoked."""

    prefix: str


async def mint(call: Call) -> CreatedFederatedKeyV1:
    name = call.body_as(CreateFederatedKeyRequestV1).name
    key, record = await keys.mint(call.parts.store, _ring(call), KeyKind.FEDERATED, name)
    return CreatedFederatedKeyV1(
        api_key=key, prefix=record.prefix, name=record.name, created_at=time_text(record.created_at_ms)
    )


async def create(call: Call) -> CreatedWorkspaceKeyV1:
    asked = call.body_as(CreateWorkspaceKeyRequestV1)
    key, record = await keys.mint(call.parts.store, _ring(call), KeyKind(asked.type), asked.name)
    created_at = time_text(record.created_at_ms)
    return CreatedWorkspaceKeyV1(
        api_key=key, prefix=record.prefix, name=record.name, created_at=created_at, type=asked.type
    )


async def list_minted(call: Call) -> Encoded:
    return await _list(call, _federated)


async def list_own(call: Call) -> Encoded:
    return await _list(call, _workspace)


async def get_minted(call: Call) -> FederatedKeyV1:
    return _federated(await _get(call))


async def get_own(call: Call) -> WorkspaceKeyV1:
    return _workspace(await _get(call))


async def revoke(call: Call) -> RevokedKeyV1:
    await keys.revoke(call.parts.store, _ring(call), call.path["prefix"])
    return RevokedKeyV1(prefix=call.path["prefix"])


def _ring(call: Call) -> Keyring:
    return Keyring(call.caller.workspace_id, call.path.get("group_id"))


async def _list(call: Call, show: Callable[[KeyRecord], BaseModel]) -> Encoded:
    ring = _ring(call)

    async def fetch(at: Position[KeyRecord]) -> Sequence[KeyRecord]:
        async with call.parts.store.read() as conn:
            await keys.check_ring(conn, ring)
            after = tuple(at.after) if at.after else None
            return await key_rows.list_keys(conn, ring.workspace_id, ring.group_id, after, at.limit)

    kind = f"keys {ring.group_id or ''}"
    return await page_of(call, Listing(kind, fetch, lambda record: [record.created_at_ms, record.prefix], shown(show)))


async def _get(call: Call) -> KeyRecord:
    ring = _ring(call)
    async with call.parts.store.read() as conn:
        await keys.check_ring(conn, ring)
        record = await key_rows.get_key(conn, ring.workspace_id, ring.group_id, call.path["prefix"])
    if record is None:
        raise not_found("API key")
    return record


def _federated(record: KeyRecord) -> FederatedKeyV1:
    created_at, last_used_at = time_text(record.created_at_ms), optional_time_text(record.last_used_at_ms)
    return FederatedKeyV1(prefix=record.prefix, name=record.name, created_at=created_at, last_used_at=last_used_at)


def _workspace(record: KeyRecord) -> WorkspaceKeyV1:
    return WorkspaceKeyV1.model_validate({**_federated(record).model_dump(), "type": record.kind})


_OWN, _MINTED = "/v1/api_keys", "/v1/gateway/groups/{group_id}/api_keys"
_ONE_OWN, _ONE_MINTED = f"{_OWN}/{{prefix}}", f"{_MINTED}/{{prefix}}"
_MINT, _CREATE, _PAGE = CreateFederatedKeyRequestV1, CreateWorkspaceKeyRequestV1, PageQueryV1
_MADE, _SEVERAL = CreatedFederatedKeyV1, FederatedKeysResponseV1
_MADE_OWN, _SEVERAL_OWN = CreatedWorkspaceKeyV1, WorkspaceKeysResponseV1
OPERATIONS = (
    Operation("POST", _MINTED, mint, "Mint a federated key", _MADE, body=_MINT, errors=(400, 404)),
    Operation("GET", _MINTED, list_minted, "List a group's keys", _SEVERAL, query=_PAGE, errors=(400, 404)),
    Operation("GET", _ONE_MINTED, get_minted, "Get a group's key", FederatedKeyV1, errors=(404,)),
    Operation("DELETE", _ONE_MINTED, revoke, "Revoke a group's key", RevokedKeyV1, errors=(404,)),
    Operation("POST", _OWN, create, "Create a workspace key", _MADE_OWN, body=_CREATE, errors=(400,), tag="Keys"),
    Operation("GET", _OWN, list_own, "List workspace keys", _SEVERAL_OWN, query=_PAGE, errors=(400,), tag="Keys"),
    Operation("GET", _ONE_OWN, get_own, "Get a workspace key", WorkspaceKeyV1, errors=(404,), tag="Keys"),
    Operation("DELETE", _ONE_OWN, revoke, "Revoke a workspace key", RevokedKeyV1, errors=(404,), tag="Keys"),
)
