"""`/v1/gateway/endpoints`: slugs and their targets (docs/reference/management-api.md#endpoints).

The request's target models are made from `policy.endpoints.PROVIDERS`, so the API's description cannot differ from it.
"""

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, Field, create_model
from typing_extensions import TypedDict

from control.api.changes.ownership import OwnableRequestV1, OwnableResponseV1
from control.api.protocol.encoding import Encoded
from control.api.protocol.lists import Listing, Position, encoder, list_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import (
    NO_NUL,
    DeletedV1,
    IdText,
    PageQueryV1,
    PaginationResponseV1,
    RequestV1,
    ResponseV1,
    SlugText,
    TimeText,
)
from control.records.policy import EndpointRecord
from control.resources import endpoints
from control.resources.changes.shown import shown_endpoint
from control.resources.endpoints import NewTarget
from policy.endpoints import ALLOWED_VALUES, PROVIDERS, Provider, Target, VendorCConfig

_LOCATION = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]
ENVIRONMENT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"


class VendorCConfigV1(RequestV1):
    """The project and location of a VENDOR_C target in the vendor's cloud."""

    project_id: _LOCATION = Field(examples=["my-project"])
    location: _LOCATION = Field(examples=["europe-west4"])


_FIELD_TYPES: dict[str, Any] = {
    "model_id": IdText,
    "environment_name": Annotated[str, Field(pattern=ENVIRONMENT_PATTERN)],
    "secret_id": IdText,
    "target_model": Annotated[str, Field(min_length=1, max_length=512, json_schema_extra=NO_NUL)],
    "base_url": Annotated[str, Field(min_length=1, max_length=2048, examples=["https://llm.example.com"])],
    "vendor_c_config": VendorCConfigV1,
}
_OPTION_TYPES: dict[str, Any] = {name: Literal[values] for name, values in ALLOWED_VALUES.items()}
_DIALECT: Any = _OPTION_TYPES["dialects"]
_OPTION_TYPES["dialects"] = Annotated[list[_DIALECT], Field(min_length=1, json_schema_extra={"uniqueItems": True})]
"""The types of the optional fields that every target has."""


def _target_schema(provider: str, rules: Provider) -> type[BaseModel]:
    fields: dict[str, Any] = {"provider": (Literal[provider], ...)}
    fields |= {name: (_FIELD_TYPES[name], ...) for name in sorted(rules.required)}
    fields |= {name: (_FIELD_TYPES[name] | None, None) for name in sorted(rules.optional)}
    fields |= {name: (kind | None, None) for name, kind in _OPTION_TYPES.items()}
    # Clients that are generated with one type for all targets send the other providers' fields as null.
    fields |= dict.fromkeys(sorted(_FIELD_TYPES.keys() - rules.required - rules.optional), (None, None))
    name = "".join(part.title() for part in provider.split("_"))
    return create_model(f"{name}TargetV1", __base__=RequestV1, __doc__=f"A {rules.category} target.", **fields)


_TARGET_SCHEMAS: Any = tuple(_target_schema(provider, rules) for provider, rules in PROVIDERS.items())
if TYPE_CHECKING:
    TargetRequest = BaseModel
else:
    TargetRequest = Annotated[reduce(or_, _TARGET_SCHEMAS), Field(discriminator="provider")]
Targets = Annotated[list[TargetRequest], Field(min_length=1, max_length=1, description="Exactly one target.")]


class CreateGatewayEndpointRequestV1(OwnableRequestV1):
    """A slug and its target."""

    slug: SlugText
    targets: Targets


class UpdateGatewayEndpointRequestV1(OwnableRequestV1):
    """Replaces the whole target list. The slug cannot change."""

    targets: Targets


class VendorCPlaceV1(TypedDict):
    """The project and location of a VENDOR_C target."""

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
    upstream_state: NotRequired[str]
    dialects: NotRequired[list[str]]
    price_options: NotRequired[str]


class GatewayEndpointV1(OwnableResponseV1):
    """A slug and its target."""

    id: str
    slug: str
    targets: list[GatewayTargetV1]
    created_at: TimeText
    updated_at: TimeText


class GatewayEndpointsResponseV1(ResponseV1):
    """One page of endpoints."""

    items: list[GatewayEndpointV1]
    pagination: PaginationResponseV1


class DeletedGatewayEndpointV1(DeletedV1):
    """The deleted endpoint. Its slug can be used again."""

    id: str
    slug: str


async def _post(request: ApiRequest) -> GatewayEndpointV1:
    body = request.body_as(CreateGatewayEndpointRequestV1)
    target = _target(body.targets[0])
    await endpoints.check_target_rules(target, request.dependencies.names)
    new = NewTarget(target, body.owner_change())
    keys = request.dependencies.settings.secret_keys
    return _response(await endpoints.create_endpoint(request.store, keys, request.workspace_id, body.slug, new))


async def _patch(request: ApiRequest) -> GatewayEndpointV1:
    body = request.body_as(UpdateGatewayEndpointRequestV1)
    target = _target(body.targets[0])
    await endpoints.check_target_rules(target, request.dependencies.names)
    new = NewTarget(target, body.owner_change())
    keys = request.dependencies.settings.secret_keys
    endpoint_id = request.path["endpoint_id"]
    return _response(await endpoints.replace_target(request.store, keys, request.workspace_id, endpoint_id, new))


async def _get(request: ApiRequest) -> GatewayEndpointV1:
    return _response(await endpoints.read_endpoint(request.store, request.workspace_id, request.path["endpoint_id"]))


async def _list(request: ApiRequest) -> Encoded:
    async def fetch(at: Position[EndpointRecord]) -> Sequence[EndpointRecord]:
        return await endpoints.read_endpoints(request.store, request.workspace_id, at.after, at.limit)

    return await list_page(request, Listing("endpoints", fetch, lambda record: record.id, encoder(_response)))


async def _delete(request: ApiRequest) -> DeletedGatewayEndpointV1:
    record = await endpoints.remove_endpoint(request.store, request.workspace_id, request.path["endpoint_id"])
    return DeletedGatewayEndpointV1(id=record.id, slug=record.slug)


def _target(body: BaseModel) -> Target:
    fields = body.model_dump()
    location = fields.pop("vendor_c_config", None)
    dialects = fields.pop("dialects", None)
    return Target(
        **fields,
        vendor_c_config=VendorCConfig(**location) if location else None,
        dialects=None if dialects is None else tuple(dialects),
    )


def _response(record: EndpointRecord) -> GatewayEndpointV1:
    return GatewayEndpointV1(**shown_endpoint(record))


_PATH = "/v1/gateway/endpoints"
_ONE = f"{_PATH}/{{endpoint_id}}"
_CREATE = CreateGatewayEndpointRequestV1
_UPDATE = UpdateGatewayEndpointRequestV1
OPERATIONS = (
    Operation("POST", _PATH, _post, "Create an endpoint", GatewayEndpointV1, body=_CREATE, errors=(400, 409)),
    Operation("GET", _PATH, _list, "List endpoints", GatewayEndpointsResponseV1, query=PageQueryV1, errors=(400,)),
    Operation("GET", _ONE, _get, "Get an endpoint", GatewayEndpointV1, errors=(404,)),
    Operation("PATCH", _ONE, _patch, "Replace the targets", GatewayEndpointV1, body=_UPDATE, errors=(400, 404)),
    Operation("DELETE", _ONE, _delete, "Delete an endpoint", DeletedGatewayEndpointV1, errors=(404,)),
)
