"""`/v1/secrets`: upstream credentials. Their values are stored and never returned.

See docs/reference/management-api.md#secrets.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from pydantic import Field

from control.api.changes.ownership import OwnableRequestV1, OwnableResponseV1
from control.api.changes.team import TeamRequestV1, check_team, check_team_id
from control.api.protocol.encoding import Encoded
from control.api.protocol.lists import Listing, Position, encoder, list_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import (
    NO_NUL,
    DeletedV1,
    PaginationResponseV1,
    RequestV1,
    ResponseV1,
    TimeText,
    WholeListQueryV1,
    original_name,
)
from control.records.policy import SecretRecord
from control.resources import secrets
from control.resources.changes.shown import shown_secret
from control.resources.secrets import NewSecret
from policy.keys.permissions import Permission

MAX_VALUE_CHARS = 65_536


_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._@:-]{0,254}$", examples=["vendor-b"])]
_Value = Annotated[str, Field(min_length=1, max_length=MAX_VALUE_CHARS, repr=False, json_schema_extra=NO_NUL)]


class PutSecretRequestV1(OwnableRequestV1, TeamRequestV1):
    """A credential and its name. Storing under an existing name rotates the value and keeps the id."""

    name: _Name
    value: _Value


class CompareSecretRequestV1(RequestV1):
    """A value to compare with the stored one."""

    name: _Name
    value: _Value


class ComparedSecretV1(ResponseV1):
    """The result of a comparison: is a secret of that name stored, and does it have that value."""

    name: str
    exists: bool
    equal: bool


class SecretV1(OwnableResponseV1):
    """A stored credential, without its value."""

    id: str
    name: str
    team_name: str
    created_at: TimeText
    updated_at: TimeText


class SecretsResponseV1(ResponseV1):
    """One page of secrets."""

    items: list[SecretV1]
    secrets: list[SecretV1] = original_name("secrets")
    pagination: PaginationResponseV1


class DeletedSecretV1(DeletedV1):
    """The deleted secret."""

    id: str
    name: str


async def _post(request: ApiRequest) -> SecretV1:
    body = request.body_as(PutSecretRequestV1)
    check_team(request, body)
    parts = request.dependencies
    new = NewSecret(body.name, body.value, body.owner_change())
    record = await secrets.put_secret(parts.store, parts.settings.secret_keys, request.workspace_id, new)
    return _response(request.caller.workspace_name, record)


async def _post_compare(request: ApiRequest) -> ComparedSecretV1:
    body = request.body_as(CompareSecretRequestV1)
    keys = request.dependencies.settings.secret_keys
    secret = NewSecret(body.name, body.value)
    equal = await secrets.compare_secret(request.store, keys, request.workspace_id, secret)
    return ComparedSecretV1(name=body.name, exists=equal is not None, equal=equal is True)


async def _list(request: ApiRequest) -> Encoded:
    async def fetch(at: Position[SecretRecord]) -> Sequence[SecretRecord]:
        return await secrets.read_secrets(request.store, request.workspace_id, at.after, at.limit)

    encode = encoder(partial(_response, request.caller.workspace_name))
    return await list_page(request, Listing("secrets", fetch, lambda record: record.id, encode, name="secrets"))


async def _post_of_team(request: ApiRequest) -> SecretV1:
    check_team_id(request)
    return await _post(request)


async def _list_of_team(request: ApiRequest) -> Encoded:
    check_team_id(request)
    return await _list(request)


async def _delete(request: ApiRequest) -> DeletedSecretV1:
    name = request.path["name"]
    id = await secrets.remove_secret(request.store, request.workspace_id, name)
    return DeletedSecretV1(id=id, name=name)


async def _delete_of_team(request: ApiRequest) -> DeletedSecretV1:
    check_team_id(request)
    return await _delete(request)


def _response(team_name: str, record: SecretRecord) -> SecretV1:
    return SecretV1(team_name=team_name, **shown_secret(record))


_PATH = "/v1/secrets"
_OF_TEAM = "/v1/teams/{team_id}/secrets"
_PUT = PutSecretRequestV1
_PAGE = WholeListQueryV1
OPERATIONS = (
    Operation(
        *("POST", _PATH, _post, "Store or rotate a secret", SecretV1),
        body=_PUT,
        errors=(400, 409),
        needs=Permission.POLICY,
        creates=True,
    ),
    Operation(
        *("GET", _PATH, _list, "List secrets", SecretsResponseV1),
        query=_PAGE,
        errors=(400,),
        needs=Permission.READ,
    ),
    Operation(
        *("POST", _OF_TEAM, _post_of_team, "Store or rotate a secret of a team", SecretV1),
        body=_PUT,
        errors=(400, 404, 409),
        needs=Permission.POLICY,
        creates=True,
    ),
    Operation(
        *("GET", _OF_TEAM, _list_of_team, "List secrets of a team", SecretsResponseV1),
        query=_PAGE,
        errors=(400, 404),
        needs=Permission.READ,
    ),
    Operation(
        *("DELETE", f"{_OF_TEAM}/{{name}}", _delete_of_team, "Delete a secret of a team", DeletedSecretV1),
        errors=(404, 409),
        needs=Permission.POLICY,
    ),
    Operation(
        *("POST", f"{_PATH}/compare", _post_compare, "Compare a secret's value", ComparedSecretV1),
        body=CompareSecretRequestV1,
        errors=(400,),
        needs=Permission.POLICY,
    ),
    Operation(
        *("DELETE", f"{_PATH}/{{name}}", _delete, "Delete a secret", DeletedSecretV1),
        errors=(404, 409),
        needs=Permission.POLICY,
    ),
)
