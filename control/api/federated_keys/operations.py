"""`/v1/gateway/groups/{group_id}/api_keys`: keys are shown once, then addressed by prefix.

See docs/reference/management-api.md#federated-keys.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from control.api.federated_keys.settings import (
    KeySettingsRequestV1,
    KeySettingsV1,
    changed_settings,
    settings_of,
)
from control.api.protocol.encoding import Encoded
from control.api.protocol.lists import Listing, Position, encoder, list_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import (
    INTEGRAL,
    DeletedV1,
    Name,
    PageQueryV1,
    PaginationResponseV1,
    RequestV1,
    ResponseV1,
    TimeText,
)
from control.records.policy import KeyRecord
from control.records.times import time_text
from control.resources import keys
from control.resources.changes.shown import shown_key
from control.resources.federated_keys import changes, new_keys
from control.resources.federated_keys.changes import MAX_OVERLAP_S, KeyChange
from control.resources.federated_keys.new_keys import NewKey
from control.resources.federated_keys.revocation import revoke_group_key
from control.resources.federated_keys.rules import GroupKeys
from control.resources.keys import KeyOwner
from policy.credentials import REGISTERED_PATTERN
from policy.keys.permissions import Permission

_REGISTERED: dict[str, Any] = {"pattern": f"^{REGISTERED_PATTERN}$"}
"""The pattern for the schema; `policy.credentials.unregistrable` validates, with a better message."""


class CreateFederatedKeyRequestV1(KeySettingsRequestV1):
    """A new key of a group. What is set on it narrows what its group may do; `{}` narrows nothing."""

    name: Name | None = None


class RegisterKeyRequestV1(KeySettingsRequestV1):
    """A key of one's own for a group. It is stored as a digest only, and never shown."""

    key: Annotated[str, Field(json_schema_extra=_REGISTERED, description="Not in the form of a JWT, nor `tg_…`.")]
    name: Name | None = None


class UpdateFederatedKeyRequestV1(KeySettingsRequestV1):
    """Changes of a key. What is left out stays as it is; null resets it. At least one member must be there."""

    name: Name | None = None
    disabled: bool | None = Field(None, description="`true`: calls are refused until it is `false` again.")

    model_config = KeySettingsRequestV1.model_config | {"json_schema_extra": {"minProperties": 1}}

    @model_validator(mode="after")
    def _says_something(self) -> "UpdateFederatedKeyRequestV1":
        if not self.model_fields_set:
            raise ValueError("give at least one of " + ", ".join(type(self).model_fields))
        return self


class RotateKeyRequestV1(RequestV1):
    """A rotation: the time in which both keys work."""

    overlap_seconds: Annotated[int, Field(ge=0, le=MAX_OVERLAP_S, examples=[86_400]), INTEGRAL] = Field(
        description="The old key ends so long from now, or when it would have anyway. 0: at once."
    )


class FederatedKeyV1(KeySettingsV1):
    """A group's key, identified by its public prefix."""

    prefix: str
    name: str | None
    created_at: TimeText
    last_used_at: TimeText | None


class CreatedFederatedKeyV1(FederatedKeyV1):
    """The new key. `api_key` is shown only here."""

    api_key: str


class ReplacedKeyV1(ResponseV1):
    """The key that was rotated, and when it ends."""

    prefix: str
    expires_at: TimeText


class RotatedKeyV1(CreatedFederatedKeyV1):
    """The key that takes the place of another, `replaces`. `api_key` is shown only here."""

    replaces: ReplacedKeyV1


class RegisteredKeyV1(ResponseV1):
    """The key that was registered: `prefix` is its name in lists and events."""

    ok: Literal[True]
    prefix: str
    name: str | None


class FederatedKeysResponseV1(ResponseV1):
    """One page of a group's keys."""

    items: list[FederatedKeyV1]
    pagination: PaginationResponseV1


class RevokedFederatedKeyV1(DeletedV1):
    """The prefix of the key that was revoked, and its group."""

    prefix: str
    group_id: str


async def _post(request: ApiRequest) -> CreatedFederatedKeyV1:
    body = request.body_as(CreateFederatedKeyRequestV1)
    key, record = await new_keys.mint_group_key(request.store, _owner(request), NewKey(body.name, settings_of(body)))
    return CreatedFederatedKeyV1(api_key=key, **shown_key(record))


async def _register(request: ApiRequest) -> RegisteredKeyV1:
    body = request.body_as(RegisterKeyRequestV1)
    new = NewKey(body.name, settings_of(body))
    record = await new_keys.register_key(request.store, _owner(request), body.key, new)
    return RegisteredKeyV1(ok=True, prefix=record.prefix, name=record.name)


async def _patch(request: ApiRequest) -> FederatedKeyV1:
    body = request.body_as(UpdateFederatedKeyRequestV1)
    settings = dict(changed_settings(body))
    if "disabled" in body.model_fields_set:
        settings["disabled"] = bool(body.disabled)
    change = KeyChange(settings, "name" in body.model_fields_set, body.name)
    return _shown(await changes.change_key(request.store, _owner(request), request.path["prefix"], change))


async def _rotate(request: ApiRequest) -> RotatedKeyV1:
    overlap_s = request.body_as(RotateKeyRequestV1).overlap_seconds
    rotation = await changes.rotate_key(request.store, _owner(request), request.path["prefix"], overlap_s)
    replaces = ReplacedKeyV1(prefix=rotation.replaced.prefix, expires_at=time_text(rotation.end_ms))
    return RotatedKeyV1(api_key=rotation.key, replaces=replaces, **shown_key(rotation.record))


async def _list(request: ApiRequest) -> Encoded:
    owner = _key_owner(request)

    async def fetch(at: Position[KeyRecord]) -> Sequence[KeyRecord]:
        return await keys.read_keys(request.store, owner, tuple(at.after) if at.after else None, at.limit)

    kind = f"keys {owner.group_id}"
    listing = Listing(kind, fetch, lambda record: [record.created_at_ms, record.prefix], encoder(_shown))
    return await list_page(request, listing)


async def _get(request: ApiRequest) -> FederatedKeyV1:
    return _shown(await keys.read_key(request.store, _key_owner(request), request.path["prefix"]))


async def _delete(request: ApiRequest) -> RevokedFederatedKeyV1:
    prefix = request.path["prefix"]
    await revoke_group_key(request.store, request.dependencies.counters, _key_owner(request), prefix)
    return RevokedFederatedKeyV1(prefix=prefix, group_id=request.path["group_id"])


def _owner(request: ApiRequest) -> GroupKeys:
    return GroupKeys(request.workspace_id, request.path["group_id"])


def _key_owner(request: ApiRequest) -> KeyOwner:
    return KeyOwner(request.workspace_id, request.path["group_id"])


def _shown(record: KeyRecord) -> FederatedKeyV1:
    return FederatedKeyV1(**shown_key(record))


_PATH = "/v1/gateway/groups/{group_id}/api_keys"
_REGISTER_PATH = f"{_PATH}/register"
_ONE = f"{_PATH}/{{prefix}}"
_NEW = CreateFederatedKeyRequestV1
_BRING = RegisterKeyRequestV1
_PAGE = PageQueryV1
_MADE = CreatedFederatedKeyV1
_SEVERAL = FederatedKeysResponseV1
_REVOKED = RevokedFederatedKeyV1
_CHANGE = UpdateFederatedKeyRequestV1
_ROTATION = RotateKeyRequestV1
_WRONG = (400, 404, 409)
OPERATIONS = (
    Operation(
        *("POST", _PATH, _post, "Mint a federated key", _MADE),
        body=_NEW,
        errors=_WRONG,
        needs=Permission.KEYS,
        creates=True,
    ),
    Operation(
        *("POST", _REGISTER_PATH, _register, "Register a key", RegisteredKeyV1),
        body=_BRING,
        errors=_WRONG,
        needs=Permission.KEYS,
        creates=True,
    ),
    Operation(
        *("GET", _PATH, _list, "List a group's keys", _SEVERAL),
        query=_PAGE,
        errors=(400, 404),
        needs=Permission.READ,
    ),
    Operation(
        *("GET", _ONE, _get, "Get a group's key", FederatedKeyV1),
        errors=(404,),
        needs=Permission.READ,
    ),
    Operation(
        *("PATCH", _ONE, _patch, "Change a group's key", FederatedKeyV1),
        body=_CHANGE,
        errors=_WRONG,
        needs=Permission.KEYS,
    ),
    Operation(
        *("POST", f"{_ONE}/rotate", _rotate, "Rotate a group's key", RotatedKeyV1),
        body=_ROTATION,
        errors=_WRONG,
        needs=Permission.KEYS,
        creates=True,
    ),
    Operation(
        *("DELETE", _ONE, _delete, "Revoke a group's key", _REVOKED),
        errors=(404,),
        needs=Permission.KEYS,
    ),
)
