"""`/v1/models`: platform models (docs/reference/management-api.md#models)."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from pydantic import Field

from control.api.changes.team import TeamRequestV1, check_team
from control.api.platform.fixed_settings import NO_INSTANCE_TYPE, NoSource
from control.api.protocol.encoding import Encoded
from control.api.protocol.lists import Listing, Position, encoder, list_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import (
    DeletedV1,
    Name,
    PaginationResponseV1,
    ResponseV1,
    TimeText,
    WholeListQueryV1,
    original_name,
)
from control.records.models import PageOfNames
from control.records.times import time_text
from control.resources.platform import models
from control.resources.platform.models import ModelSummary
from policy.keys.permissions import Permission


class ModelsQueryV1(WholeListQueryV1):
    """Parameters of the list of models."""

    name: Annotated[Name | None, Field(description="Only models of exactly this name.")] = None


class CreateModelRequestV1(TeamRequestV1):
    """A platform model."""

    source: NoSource = None
    name: Name


class UpdateModelRequestV1(TeamRequestV1):
    """The model's new name."""

    name: Name


class ModelV1(ResponseV1):
    """A platform model, and what its environments `production` and `development` point to."""

    id: str
    name: str
    created_at: TimeText
    deployments_count: int = Field(ge=0)
    production_deployment_id: str | None
    development_deployment_id: str | None
    instance_type_name: str = Field(description="Always empty: machines are their owner's.")
    team_name: str


class ModelsResponseV1(ResponseV1):
    """One page of models."""

    items: list[ModelV1]
    models: list[ModelV1] = original_name("models")
    pagination: PaginationResponseV1


class DeletedModelV1(DeletedV1):
    """The deleted model."""

    id: str


async def _post(request: ApiRequest) -> ModelV1:
    body = request.body_as(CreateModelRequestV1)
    check_team(request, body)
    return _response(request, await models.create_model(request.store, request.workspace_id, body.name))


async def _patch(request: ApiRequest) -> ModelV1:
    body = request.body_as(UpdateModelRequestV1)
    check_team(request, body)
    model_id = request.path["model_id"]
    return _response(request, await models.rename_model(request.store, request.workspace_id, model_id, body.name))


async def _get(request: ApiRequest) -> ModelV1:
    model_id = request.path["model_id"]
    return _response(request, await models.read_model(request.store, request.workspace_id, model_id))


async def _list(request: ApiRequest) -> Encoded:
    async def fetch(at: Position[ModelSummary]) -> Sequence[ModelSummary]:
        page = PageOfNames(at.after, at.limit, at.filters.get("name"))
        return await models.read_models(request.store, request.workspace_id, page)

    encode = encoder(partial(_response, request))
    listing = Listing("models", fetch, lambda model: model.record.id, encode, ("name",), name="models")
    return await list_page(request, listing)


async def _delete(request: ApiRequest) -> DeletedModelV1:
    return DeletedModelV1(id=await models.remove_model(request.store, request.workspace_id, request.path["model_id"]))


def _response(request: ApiRequest, model: ModelSummary) -> ModelV1:
    return ModelV1(
        id=model.record.id,
        name=model.record.name,
        created_at=time_text(model.record.created_at_ms),
        deployments_count=model.deployments_count,
        production_deployment_id=model.production_deployment_id,
        development_deployment_id=model.development_deployment_id,
        instance_type_name=NO_INSTANCE_TYPE,
        team_name=request.caller.workspace_name,
    )


_PATH = "/v1/models"
_ONE = f"{_PATH}/{{model_id}}"
_CREATE = CreateModelRequestV1
_UPDATE = UpdateModelRequestV1
OPERATIONS = (
    Operation(
        *("POST", _PATH, _post, "Register a model", ModelV1),
        body=_CREATE,
        errors=(400,),
        needs=Permission.WORKLOADS,
        creates=True,
    ),
    Operation(
        *("GET", _PATH, _list, "List models", ModelsResponseV1),
        query=ModelsQueryV1,
        errors=(400,),
        needs=Permission.READ,
    ),
    Operation("GET", _ONE, _get, "Get a model", ModelV1, errors=(404,), needs=Permission.READ),
    Operation(
        *("PATCH", _ONE, _patch, "Rename a model", ModelV1),
        body=_UPDATE,
        errors=(400, 404),
        needs=Permission.WORKLOADS,
    ),
    Operation(
        *("DELETE", _ONE, _delete, "Delete a model", DeletedModelV1),
        errors=(404, 409),
        needs=Permission.WORKLOADS,
    ),
)
