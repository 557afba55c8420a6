"""`/v1/gateway/endpoints`: slugs and their targets (docs/reference/management-api.md#endpoints).

The request's target models are made from `policy.endpoints.PROVIDERS`, so the API's description cannot differ from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, Field, create_model
from typing_extensions import TypedDict

from control.api.changes.conditions import tagged
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
from control.resources.changes.tags import record_tag
from control.resources.endpoints import NewTarget
from policy.endpoints import (
    ALLOWED_VALUES,
    PROVIDER_NAMES,
    PROVIDERS,
    ProviderName,
    ProviderNames,
    Target,
    VendorCConfig,
)
from policy.keys.permissions import Permission

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
    "vertex_config": VendorCConfigV1,
}
_OPTION_TYPES: dict[str, Any] = {name: Literal[values] for name, values in ALLOWED_VALUES.items()}
_DIALECT: Any = _OPTION_TYPES["dialects"]
_OPTION_TYPES["dialects"] = Annotated[list[_DIALECT], Field(min_length=1, json_schema_extra={"uniqueItems": True})]
"""The types of the optional fields that every target has."""


def _target_schema(names: Sequence[ProviderName]) -> type[BaseModel]:
    """The schema of targets with one of these names, which have the same fields."""
    first = names[0]
    required = first.required
    optional = first.optional
    fields: dict[str, Any] = {"provider": (Literal[tuple(one.name for one in names)], ...)}
    fields |= {name: (_FIELD_TYPES[name], ...) for name in sorted(required)}
    fields |= {name: (_FIELD_TYPES[name] | None, None) for name in sorted(optional)}
    fields |= {name: (kind | None, None) for name, kind in _OPTION_TYPES.items()}
    # Clients that are generated with one type for all targets send the other providers' fields as null.
    fields |= dict.fromkeys(sorted(_FIELD_TYPES.keys() - required - optional), (None, None))
    name = "".join(part.title() for part in first.name.split("_"))
    category = PROVIDERS[first.provider].category
    return create_model(f"{name}TargetV1", __base__=RequestV1, __doc__=f"A {category} target.", **fields)


def _targets(names: ProviderNames) -> Any:
    """The type of `targets` where providers have these names."""
    groups: dict[tuple[str, tuple[str, ...]], list[ProviderName]] = {}
    for one in names.values():
        groups.setdefault((one.provider, tuple(one.fields)), []).append(one)
    schemas: Any = tuple(map(_target_schema, groups.values()))
    annotated: Any = Annotated  # mypy knows no types that are made as the program runs
    many: Any = list
    target = annotated[reduce(or_, schemas), Field(discriminator="provider")]
    return annotated[many[target], Field(min_length=1, max_length=1, description="Exactly one target.")]


if TYPE_CHECKING:
    Targets = list[BaseModel]
else:
    Targets = _targets(PROVIDER_NAMES)


_REGION = Field(default=None, max_length=64, json_schema_extra=NO_NUL, examples=["UNRESTRICTED"])


class CreateGatewayEndpointRequestV1(OwnableRequestV1):
    """A slug and its target. Without `region` it is UNRESTRICTED."""

    slug: SlugText
    region: str | None = _REGION
    targets: Targets


class UpdateGatewayEndpointRequestV1(OwnableRequestV1):
    """Replaces the whole target list. The slug and the region cannot change."""

    region: str | None = _REGION
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
    vertex_config: NotRequired[VendorCPlaceV1]
    upstream_state: NotRequired[str]
    dialects: NotRequired[list[str]]
    price_options: NotRequired[str]


class GatewayEndpointV1(OwnableResponseV1):
    """A slug and its target."""

    id: str
    slug: str
    region: str
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


async def _post(request: ApiRequest) -> Encoded:
    body = request.body_as(CreateGatewayEndpointRequestV1)
    endpoints.check_new_region(body.region, request.dependencies.settings.regions)
    new = await _new_target(request, body)
    keys = request.dependencies.settings.secret_keys
    return _tagged(await endpoints.create_endpoint(request.store, keys, request.workspace_id, body.slug, new))


async def _patch(request: ApiRequest) -> Encoded:
    body = request.body_as(UpdateGatewayEndpointRequestV1)
    new = await _new_target(request, body)
    keys = request.dependencies.settings.secret_keys
    endpoint_id = request.path["endpoint_id"]
    return _tagged(await endpoints.replace_target(request.store, keys, request.workspace_id, endpoint_id, new))


async def _get(request: ApiRequest) -> Encoded:
    return _tagged(await endpoints.read_endpoint(request.store, request.workspace_id, request.path["endpoint_id"]))


async def _list(request: ApiRequest) -> Encoded:
    async def fetch(at: Position[EndpointRecord]) -> Sequence[EndpointRecord]:
        return await endpoints.read_endpoints(request.store, request.workspace_id, at.after, at.limit)

    return await list_page(request, Listing("endpoints", fetch, lambda record: record.id, encoder(_response)))


async def _delete(request: ApiRequest) -> DeletedGatewayEndpointV1:
    record = await endpoints.remove_endpoint(request.store, request.workspace_id, request.path["endpoint_id"])
    return DeletedGatewayEndpointV1(id=record.id, slug=record.slug)


async def _new_target(
    request: ApiRequest, body: CreateGatewayEndpointRequestV1 | UpdateGatewayEndpointRequestV1
) -> NewTarget:
    """The target that the body describes, checked by its provider's rules."""
    fields = body.targets[0].model_dump()
    name = request.dependencies.settings.provider_names[fields["provider"]]
    target = _target(name.own(fields))
    await endpoints.check_target_rules(target, name, request.dependencies.names)
    alias = None if name.name == name.provider else name.name
    return NewTarget(target, body.owner_change(), alias, body.region)


def _target(fields: dict[str, Any]) -> Target:
    location = fields.pop("vendor_c_config", None)
    dialects = fields.pop("dialects", None)
    return Target(
        **fields,
        vendor_c_config=VendorCConfig(**location) if location else None,
        dialects=None if dialects is None else tuple(dialects),
    )


def _tagged(record: EndpointRecord) -> Encoded:
    return tagged(_response(record), record_tag(record))


def _response(record: EndpointRecord) -> GatewayEndpointV1:
    return GatewayEndpointV1(**shown_endpoint(record))


_PATH = "/v1/gateway/endpoints"
_ONE = f"{_PATH}/{{endpoint_id}}"
_CREATE = CreateGatewayEndpointRequestV1
_UPDATE = UpdateGatewayEndpointRequestV1
OPERATIONS = (
    Operation(
        *("POST", _PATH, _post, "Create an endpoint", GatewayEndpointV1),
        body=_CREATE,
        errors=(400, 409),
        needs=Permission.POLICY,
        is_tagged=True,
        creates=True,
    ),
    Operation(
        *("GET", _PATH, _list, "List endpoints", GatewayEndpointsResponseV1),
        query=PageQueryV1,
        errors=(400,),
        needs=Permission.READ,
    ),
    Operation(
        *("GET", _ONE, _get, "Get an endpoint", GatewayEndpointV1),
        errors=(404,),
        needs=Permission.READ,
        is_tagged=True,
    ),
    Operation(
        *("PATCH", _ONE, _patch, "Replace the targets", GatewayEndpointV1),
        body=_UPDATE,
        errors=(400, 404),
        needs=Permission.POLICY,
        is_tagged=True,
    ),
    Operation(
        *("DELETE", _ONE, _delete, "Delete an endpoint", DeletedGatewayEndpointV1),
        errors=(404,),
        needs=Permission.POLICY,
        is_tagged=True,
    ),
)


def with_names(operations: Sequence[Operation], names: ProviderNames) -> tuple[Operation, ...]:
    """The same operations, whose bodies accept these names of providers."""
    if names == PROVIDER_NAMES:
        return tuple(operations)
    bodies: Mapping[type[BaseModel], type[BaseModel]] = {
        model: create_model(model.__name__, __base__=model, __doc__=model.__doc__, targets=(_targets(names), ...))
        for model in (_CREATE, _UPDATE)
    }
    return tuple(replace(one, body=bodies.get(one.body, one.body) if one.body else None) for one in operations)
