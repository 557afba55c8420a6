"""`/v1/secrets`: upstream credentials. Their values are stored and never returned.

See docs/reference/management-api.md#secrets.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from control.api.protocol.encoding import Encoded
from control.api.protocol.lists import Listing, Position, encoder, list_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import NO_NUL, PageQueryV1, PaginationResponseV1, RequestV1, ResponseV1, TimeText
from control.resources import secrets
from control.resources.records import SecretRecord
from control.resources.secrets import NewSecret
from control.resources.times import time_text

MAX_VALUE_CHARS = 65_536


class PutSecretRequestV1(RequestV1):
    """A credential and its name. Storing under an existing name rotates the value and keeps the id."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._@:-]{0,254}$", examples=["vendor-b"])]
    value: Annotated[str, Field(min_length=1, max_length=MAX_VALUE_CHARS, repr=False, json_schema_extra=NO_NUL)]


class SecretV1(ResponseV1):
    """A stored credential, without its value."""

    id: str
    name: str
    created_at: TimeText
    updated_at: TimeText


class SecretsResponseV1(ResponseV1):
    """One page of secrets."""

    items: list[SecretV1]
    pagination: PaginationResponseV1


class DeletedSecretV1(ResponseV1):
    """The deleted secret."""

    id: str
    name: str


async def _post(request: ApiRequest) -> SecretV1:
    body = request.body_as(PutSecretRequestV1)
    parts, new = request.dependencies, NewSecret(body.name, body.value)
    return _response(await secrets.put_secret(parts.store, parts.settings.secret_keys, request.workspace_id, new))


async def _list(request: ApiRequest) -> Encoded:
    async def fetch(at: Position[SecretRecord]) -> Sequence[SecretRecord]:
        return await secrets.read_secrets(request.store, request.workspace_id, at.after, at.limit)

    return await list_page(request, Listing("secrets", fetch, lambda record: record.id, encoder(_response)))


async def _delete(request: ApiRequest) -> DeletedSecretV1:
    name = request.path["name"]
    id = await secrets.remove_secret(request.store, request.workspace_id, name)
    return DeletedSecretV1(id=id, name=name)


def _response(record: SecretRecord) -> SecretV1:
    created_at, updated_at = time_text(record.created_at_ms), time_text(record.updated_at_ms)
    return SecretV1(id=record.id, name=record.name, created_at=created_at, updated_at=updated_at)


_PATH, _PUT, _PAGE = "/v1/secrets", PutSecretRequestV1, PageQueryV1
OPERATIONS = (
    Operation("POST", _PATH, _post, "Store or rotate a secret", SecretV1, body=_PUT, errors=(400, 409), tag="Secrets"),
    Operation("GET", _PATH, _list, "List secrets", SecretsResponseV1, query=_PAGE, errors=(400,), tag="Secrets"),
    Operation(
        "DELETE", f"{_PATH}/{{name}}", _delete, "Delete a secret", DeletedSecretV1, errors=(404, 409), tag="Secrets"
    ),
)
