"""`/v1/models/{model_id}/environments` (docs/reference/management-api.md#environments)."""

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from control.api.endpoints import ENVIRONMENT_PATTERN
from control.api.platform.deployment_schemas import DeploymentV1, deployment_response
from control.api.platform.fixed_settings import (
    BACKPRESSURE_SETTINGS,
    PROMOTION_SETTINGS,
    UNKNOWN_INSTANCE_TYPE,
    AutoscalingSettingsV1,
    BackpressureSettingsV1,
    EnvironmentSettingsRequestV1,
    PromotionSettingsV1,
    UpdateEnvironmentRequestV1,
    autoscaling_settings,
)
from control.api.protocol.encoding import Encoded
from control.api.protocol.lists import Listing, Position, encoder, list_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import (
    DeletedV1,
    IdText,
    PaginationResponseV1,
    RequestV1,
    ResponseV1,
    TimeText,
    WholeListQueryV1,
    original_name,
)
from control.api.training.job_schemas import InstanceTypeV1
from control.errors import InvalidFieldError
from control.records.models import EnvironmentRecord
from control.resources.changes.shown_platform import shown_environment
from control.resources.platform import environments
from control.resources.platform.deployments import DeploymentSummary, current_deployments
from policy.keys.permissions import Permission

_Pair = tuple[EnvironmentRecord, DeploymentSummary | None]
"""An environment and what it points to."""


class SetEnvironmentRequestV1(RequestV1):
    """The deployment that the environment points to."""

    deployment_id: IdText


class CreateEnvironmentRequestV1(EnvironmentSettingsRequestV1):
    """An environment that points to no deployment yet."""

    name: Annotated[str, Field(pattern=ENVIRONMENT_PATTERN, examples=["staging"])]


class EnvironmentV1(ResponseV1):
    """An environment of a model and the deployment it points to; null while it is empty."""

    name: str
    model_id: str
    deployment_id: str | None
    current_deployment: DeploymentV1 | None
    autoscaling_settings: AutoscalingSettingsV1
    promotion_settings: PromotionSettingsV1
    instance_type: InstanceTypeV1
    request_backpressure_settings: BackpressureSettingsV1
    created_at: TimeText
    updated_at: TimeText


class EnvironmentUnchangedV1(ResponseV1):
    """The environment after a change that asked for nothing."""

    environment: EnvironmentV1
    status: Literal["UNCHANGED"]
    message: str


class EnvironmentsResponseV1(ResponseV1):
    """One page of environments."""

    items: list[EnvironmentV1]
    environments: list[EnvironmentV1] = original_name("environments")
    pagination: PaginationResponseV1


class DeletedEnvironmentV1(DeletedV1):
    """The deleted environment. The deployment it pointed to stays."""

    name: str
    model_id: str


async def _post(request: ApiRequest) -> EnvironmentV1:
    name = request.body_as(CreateEnvironmentRequestV1).name
    model_id = request.path["model_id"]
    return await _shown(
        request, await environments.create_environment(request.store, request.workspace_id, model_id, name)
    )


async def _patch(request: ApiRequest) -> EnvironmentUnchangedV1:
    record = await environments.read_environment(request.store, request.workspace_id, *_place(request))
    message = "nothing was asked for: an environment has no settings of its own"
    return EnvironmentUnchangedV1(environment=await _shown(request, record), status="UNCHANGED", message=message)


async def _put(request: ApiRequest) -> EnvironmentV1:
    model_id, name = _place(request)
    if not re.fullmatch(ENVIRONMENT_PATTERN, name):
        raise InvalidFieldError("environment_name", "an environment's name is [A-Za-z0-9][A-Za-z0-9._-]{0,127}")
    deployment_id = request.body_as(SetEnvironmentRequestV1).deployment_id
    return await _shown(
        request,
        await environments.point_environment(request.store, request.workspace_id, model_id, name, deployment_id),
    )


async def _get(request: ApiRequest) -> EnvironmentV1:
    record = await environments.read_environment(request.store, request.workspace_id, *_place(request))
    return await _shown(request, record)


async def _list(request: ApiRequest) -> Encoded:
    model_id = request.path["model_id"]

    async def fetch(at: Position[_Pair]) -> Sequence[_Pair]:
        owner = (request.store, request.workspace_id)
        records = await environments.read_environments(*owner, model_id, at.after, at.limit)
        return await _with_deployments(request, records)

    kind = f"environments {model_id}"
    listing = Listing(kind, fetch, lambda pair: pair[0].name, encoder(_response), first=8, name="environments")
    return await list_page(request, listing)


async def _delete(request: ApiRequest) -> DeletedEnvironmentV1:
    record = await environments.remove_environment(request.store, request.workspace_id, *_place(request))
    return DeletedEnvironmentV1(name=record.name, model_id=record.model_id)


def _place(request: ApiRequest) -> tuple[str, str]:
    return request.path["model_id"], request.path["environment_name"]


async def _shown(request: ApiRequest, record: EnvironmentRecord) -> EnvironmentV1:
    (pair,) = await _with_deployments(request, [record])
    return _response(pair)


async def _with_deployments(request: ApiRequest, records: Sequence[EnvironmentRecord]) -> list[_Pair]:
    parts = request.dependencies
    model_id = request.path["model_id"]
    return list(zip(records, await current_deployments(parts.store, parts.loads, model_id, records), strict=True))


def _response(pair: _Pair) -> EnvironmentV1:
    record, current = pair
    return EnvironmentV1.model_validate(
        {
            **shown_environment(record),
            "current_deployment": None if current is None else deployment_response(current),
            "autoscaling_settings": autoscaling_settings(None if current is None else current.record.max_concurrency),
            "promotion_settings": PROMOTION_SETTINGS,
            "instance_type": UNKNOWN_INSTANCE_TYPE,
            "request_backpressure_settings": BACKPRESSURE_SETTINGS,
        }
    )


_PATH = "/v1/models/{model_id}/environments"
_ONE = f"{_PATH}/{{environment_name}}"
_PAGE = WholeListQueryV1
_PAGES = EnvironmentsResponseV1
OPERATIONS = (
    Operation(
        *("POST", _PATH, _post, "Create an empty environment", EnvironmentV1),
        body=CreateEnvironmentRequestV1,
        errors=(400, 404, 409),
        needs=Permission.WORKLOADS,
        creates=True,
    ),
    Operation(
        *("PUT", _ONE, _put, "Point an environment to a deployment", EnvironmentV1),
        body=SetEnvironmentRequestV1,
        errors=(400, 404, 409),
        needs=Permission.WORKLOADS,
    ),
    Operation(
        *("GET", _PATH, _list, "List environments", _PAGES),
        query=_PAGE,
        errors=(400, 404),
        needs=Permission.READ,
    ),
    Operation(
        *("PATCH", _ONE, _patch, "Ask an environment for no change", EnvironmentUnchangedV1),
        body=UpdateEnvironmentRequestV1,
        errors=(400, 404),
        needs=Permission.WORKLOADS,
    ),
    Operation("GET", _ONE, _get, "Get an environment", EnvironmentV1, errors=(404,), needs=Permission.READ),
    Operation(
        *("DELETE", _ONE, _delete, "Delete an environment", DeletedEnvironmentV1),
        errors=(404, 409),
        needs=Permission.WORKLOADS,
    ),
)
