"""`/v1/secrets`: upstream credentials. Values go in and are never returned.

See docs/reference/management-api.md#secrets.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from control.api.protocol.encoding import Encoded
from control.api.protocol.lists import Listing, Position, page_of, shown
from control.api.protocol.operations import Call, Operation
from control.api.protocol.schemas import (
    NO_NUL,
    AnswerV1,
    FormV1,
    PageQueryV1,
    PaginationResponseV1,
    TimeText,
    time_text,
)
from control.edges.sql import secret_rows
from control.edges.sql.secret_rows import SecretRecord
from control.resources import secrets
from control.resources.secrets import NewSecret

MAX_VALUE_CHARS = 65_536


class PutSecretRequestV1(FormV1):
    """A credential under a name. The same name again rotates the value and keeps the id."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._@:-]{0,254}$", examples=["vendor-b"])]
    value: Annotated[str, Field(min_length=1, max_length=MAX_VALUE_CHARS, repr=False, json_schema_extra=NO_NUL)]


class SecretV1(AnswerV1):
    """A stored credential, without its value."""

    id: str
    name: str
    created_at: TimeText
    updated_at: TimeText


class SecretsResponseV1(AnswerV1):
    """One page of secrets."""

    items: list[SecretV1]
    pagination: PaginationResponseV1


class DeletedSecretV1(AnswerV1):
    """What was deleted."""

    id: str
    name: str


async def put(call: Call) -> SecretV1:
    asked = call.body_as(PutSecretRequestV1)
    parts, new = call.parts, NewSecret(asked.name, asked.value)
    return _shown(await secrets.put_secret(parts.store, parts.settings.secret_keys, call.caller.workspace_id, new))


async def list_all(call: Call) -> Encoded:
    async def fetch(at: Position[SecretRecord]) -> Sequence[SecretRecord]:
        async with call.parts.store.read() as conn:
            return await secret_rows.list_secrets(conn, call.caller.workspace_id, at.after, at.limit)

    return await page_of(call, Listing("secrets", fetch, lambda record: record.id, shown(_shown)))


async def delete(call: Call) -> DeletedSecretV1:
    name = call.path["name"]
    id = await secrets.delete_secret(call.parts.store, call.caller.workspace_id, name)
    return DeletedSecretV1(id=id, name=name)


def _shown(record: SecretRecord) -> SecretV1:
    created_at, updated_at = time_text(record.created_at_ms), time_text(record.updated_at_ms)
    return SecretV1(id=record.id, name=record.name, created_at=created_at, updated_at=updated_at)


_PATH, _PUT, _PAGE = "/v1/secrets", PutSecretRequestV1, PageQueryV1
OPERATIONS = (
    Operation("POST", _PATH, put, "Store or rotate a secret", SecretV1, body=_PUT, errors=(400, 409), tag="Secrets"),
    Operation("GET", _PATH, list_all, "List secrets", SecretsResponseV1, query=_PAGE, errors=(400,), tag="Secrets"),
    Operation(
        "DELETE", f"{_PATH}/{{name}}", delete, "Delete a secret", DeletedSecretV1, errors=(404, 409), tag="Secrets"
    ),
)
