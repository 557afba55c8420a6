"""`/v1/gateway/endpoints`: slugs and their targets (docs/reference/management-api.md#endpoints).

The request's target models are made from `policy.endpoints.PROVIDERS`, so the API's description cannot differ from it.
"""

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, Field, create_model
from typing_extensions import TypedDict

from control.api.protocol.encoding import Encoded
from control.api.protocol.lists import Listing, Position, page_of, shown
from control.api.protocol.operations import Call, Operation
from control.api.protocol.schemas import (
    NO_NUL,
    AnswerV1,
    FormV1,
    IdText,
    PageQueryV1,
    PaginationResponseV1,
    SlugText,
    TimeText,
    time_text,
)
from control.edges.sql import endpoint_rows
from control.edges.sql.endpoint_rows import EndpointRecord
from control.resources import endpoints
from policy.endpoints import PROVIDERS, ProviderRules, Target, VendorCConfig
from policy.snapshot import target_to_wire

_PLACE = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]
ENVIRONMENT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"


class VendorCConfigV1(FormV1):
    """Where a VENDOR_C target lives in that vendor's cloud."""

    project_id: _PLACE = Field(examples=["my-project"])
    location: _PLACE = Field(examples=["europe-west4"])


_FIELD_TYPES: dict[str, Any] = {
    "model_id": IdText,
    "environment_name": Annotated[str, Field(pattern=ENVIRONMENT_PATTERN)],
    "secret_id": IdText,
    "target_model": Annotated[str, Field(min_length=1, max_length=512, json_schema_extra=NO_NUL)],
    "base_url": Annotated[str, Field(min_length=1, max_length=2048, examples=["https://llm.example.com"])],
    "vendor_c_config": VendorCConfigV1,
}


def _target_form(provider: str, rules: ProviderRules) -> type[BaseModel]:
    fields: dict[str, Any] = {"provider": (Literal[provider], ...)}
    fields |= {name: (_FIELD_TYPES[name], ...) for name in sorted(rules.required)}
    fields |= {name: (_FIELD_TYPES[name] | None, None) for name in sorted(rules.optional)}
    # Clients that are generated with one type for all targets send the other providers' fields as null.
    fields |= dict.fromkeys(sorted(_FIELD_TYPES.keys() - rules.required - rules.optional), (None, None))
    name = "".join(part.title() for part in provider.split("_"))
    return create_model(f"{name}TargetV1", __base__=FormV1, __doc__=f"A {rules.category} target.", **fields)


_TARGET_FORMS: Any = tuple(_target_form(provider, rules) for provider, rules in PROVIDERS.items())
if TYPE_CHECKING:
    TargetForm = BaseModel
else:
    TargetForm = Annotated[reduce(or_, _TARGET_FORMS), Field(discriminator="provider")]
Targets = Annotated[list[TargetForm], Field(min_length=1, max_length=1, description="Exactly one target.")]


class CreateGatewayEndpointRequestV1(FormV1):
    """A slug and where it leads."""

    slug: SlugText
    targets: Targets


class UpdateGatewayEndpointRequestV1(FormV1):
    """The full replacement of the target list; the slug never changes."""

    targets: Targets


class VendorCPlaceV1(TypedDict):
    """Where a VENDOR_C target lives."""

    project_id: str
    location: str


class GatewayTargetV1(TypedDict):
    """A target: its provider and that provider's fields."""

    provider: str
    model_id: NotRequired[str]
    environment_name: NotRequired[str]
    secret_id: NotRequired[str]
    target_model: NotRequired[str]
    base_url: NotRequired[str]
    vendor_c_config: NotRequired[VendorCPlaceV1]


class GatewayEndpointV1(AnswerV1):
    """A slug and its target."""

    id: str
    slug: str
    targets: list[GatewayTargetV1]
    created_at: TimeText
    updated_at: TimeText


class GatewayEndpointsResponseV1(AnswerV1):
    """One page of endpoints."""

    items: list[GatewayEndpointV1]
    pagination: PaginationResponseV1


class DeletedGatewayEndpointV1(AnswerV1):
    """What was deleted; the slug is free again."""

    id: str
    slug: str


async def create(call: Call) -> GatewayEndpointV1:
    asked = call.body_as(CreateGatewayEndpointRequestV1)
    target = _target(asked.targets[0])
    await endpoints.check_target_rules(target, call.parts.names)
    return _shown(await endpoints.create_endpoint(call.parts.store, call.caller.workspace_id, asked.slug, target))


async def replace(call: Call) -> GatewayEndpointV1:
    target = _target(call.body_as(UpdateGatewayEndpointRequestV1).targets[0])
    await endpoints.check_target_rules(target, call.parts.names)
    endpoint_id = call.path["endpoint_id"]
    return _shown(await endpoints.retarget(call.parts.store, call.caller.workspace_id, endpoint_id, target))


async def get(call: Call) -> GatewayEndpointV1:
    async with call.parts.store.read() as conn:
        record = await endpoint_rows.find_endpoint(conn, call.caller.workspace_id, call.path["endpoint_id"])
    return _shown(endpoints.found(record))


async def list_all(call: Call) -> Encoded:
    async def fetch(at: Position[EndpointRecord]) -> Sequence[EndpointRecord]:
        async with call.parts.store.read() as conn:
            return await endpoint_rows.list_endpoints(conn, call.caller.workspace_id, at.after, at.limit)

    return await page_of(call, Listing("endpoints", fetch, lambda record: record.id, shown(_shown)))


async def delete(call: Call) -> DeletedGatewayEndpointV1:
    store, workspace_id = call.parts.store, call.caller.workspace_id
    record = await endpoints.delete_endpoint(store, workspace_id, call.path["endpoint_id"])
    return DeletedGatewayEndpointV1(id=record.id, slug=record.slug)


def _target(form: BaseModel) -> Target:
    fields = form.model_dump()
    place = fields.pop("vendor_c_config", None)
    return Target(**fields, vendor_c_config=VendorCConfig(**place) if place else None)


def _shown(record: EndpointRecord) -> GatewayEndpointV1:
    return GatewayEndpointV1(
        id=record.id,
        slug=record.slug,
        targets=[GatewayTargetV1(**target_to_wire(record.target))],  # type: ignore[typeddict-item]  # the wire form is that type
        created_at=time_text(record.created_at_ms),
        updated_at=time_text(record.updated_at_ms),
    )


_PATH = "/v1/gateway/endpoints"
_ONE = f"{_PATH}/{{endpoint_id}}"
_CREATE, _UPDATE = CreateGatewayEndpointRequestV1, UpdateGatewayEndpointRequestV1
OPERATIONS = (
    Operation("POST", _PATH, create, "Create an endpoint", GatewayEndpointV1, body=_CREATE, errors=(400, 409)),
    Operation("GET", _PATH, list_all, "List endpoints", GatewayEndpointsResponseV1, query=PageQueryV1, errors=(400,)),
    Operation("GET", _ONE, get, "Get an endpoint", GatewayEndpointV1, errors=(404,)),
    Operation("PATCH", _ONE, replace, "Replace the targets", GatewayEndpointV1, body=_UPDATE, errors=(400, 404)),
    Operation("DELETE", _ONE, delete, "Delete an endpoint", DeletedGatewayEndpointV1, errors=(404,)),
)
