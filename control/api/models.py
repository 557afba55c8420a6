"""`/v1/models`: platform models, their deployments, replicas and environments.

See docs/reference/management-api.md#models.
"""

import re
from collections.abc import Sequence

from control.api import deployment_schemas as schemas
from control.api.deployment_schemas import (
    CreateDeploymentRequestV1,
    CreateModelRequestV1,
    SetEnvironmentRequestV1,
    SetReplicasRequestV1,
    deployment_response,
    environment_response,
    model_response,
)
from control.api.endpoints import ENVIRONMENT_PATTERN
from control.api.protocol.encoding import Encoded
from control.api.protocol.lists import Listing, Position, encoder, list_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import PageQueryV1
from control.resources.errors import InvalidFieldError
from control.resources.platform import deployments
from control.resources.platform.deployments import DeploymentRef
from control.resources.records import DeploymentRecord, EnvironmentRecord, ModelRecord


async def _post_model(request: ApiRequest) -> schemas.ModelV1:
    name = request.body_as(CreateModelRequestV1).name
    return model_response(await deployments.create_model(request.store, request.workspace_id, name))


async def _get_model(request: ApiRequest) -> schemas.ModelV1:
    return model_response(await deployments.read_model(request.store, request.workspace_id, request.path["model_id"]))


async def _list_models(request: ApiRequest) -> Encoded:
    async def fetch(at: Position[ModelRecord]) -> Sequence[ModelRecord]:
        return await deployments.read_models(request.store, request.workspace_id, at.after, at.limit)

    return await list_page(request, Listing("models", fetch, lambda record: record.id, encoder(model_response)))


async def _post_deployment(request: ApiRequest) -> schemas.DeploymentV1:
    name = request.body_as(CreateDeploymentRequestV1).name
    return deployment_response(await deployments.create_deployment(request.store, deployment_ref(request), name), None)


async def _get_deployment(request: ApiRequest) -> schemas.DeploymentV1:
    record = await deployments.read_deployment(request.store, deployment_ref(request))
    return deployment_response(record, (await _environments(request)).get(record.id))


async def _list_deployments(request: ApiRequest) -> Encoded:
    model_id = request.path["model_id"]

    async def fetch(at: Position[DeploymentRecord]) -> Sequence[DeploymentRecord]:
        return await deployments.read_deployments(request.store, request.workspace_id, model_id, at.after, at.limit)

    names = await _environments(request)

    def show(record: DeploymentRecord) -> schemas.DeploymentV1:
        return deployment_response(record, names.get(record.id))

    kind, encode = f"deployments {model_id}", encoder(show)
    return await list_page(request, Listing(kind, fetch, lambda record: record.id, encode, first=8))


async def _put_replicas(request: ApiRequest) -> schemas.DeploymentV1:
    parts, replicas = request.dependencies, request.body_as(SetReplicasRequestV1).replicas
    record = await deployments.replace_replicas(parts.store, parts.names, deployment_ref(request), replicas)
    return deployment_response(record, (await _environments(request)).get(record.id))


async def _put_environment(request: ApiRequest) -> schemas.EnvironmentV1:
    name = request.path["environment_name"]
    if not re.fullmatch(ENVIRONMENT_PATTERN, name):
        raise InvalidFieldError("environment_name", "an environment's name is [A-Za-z0-9][A-Za-z0-9._-]{0,127}")
    deployment_id = request.body_as(SetEnvironmentRequestV1).deployment_id
    return environment_response(
        await deployments.point_environment(request.store, deployment_ref(request), name, deployment_id)
    )


async def _get_environment(request: ApiRequest) -> schemas.EnvironmentV1:
    model_id, name = request.path["model_id"], request.path["environment_name"]
    return environment_response(await deployments.read_environment(request.store, request.workspace_id, model_id, name))


async def _list_environments(request: ApiRequest) -> Encoded:
    model_id = request.path["model_id"]

    async def fetch(at: Position[EnvironmentRecord]) -> Sequence[EnvironmentRecord]:
        return await deployments.read_environments(request.store, request.workspace_id, model_id, at.after, at.limit)

    kind, encode = f"environments {model_id}", encoder(environment_response)
    return await list_page(request, Listing(kind, fetch, lambda record: record.name, encode))


def deployment_ref(request: ApiRequest) -> DeploymentRef:
    """The model, and the deployment if the path names one by its id."""
    return DeploymentRef(request.workspace_id, request.path["model_id"], request.path.get("deployment_id"))


async def _environments(request: ApiRequest) -> dict[str, str]:
    return await deployments.environments_by_deployment(request.store, request.path["model_id"])


_M = "/v1/models"
_M1 = f"{_M}/{{model_id}}"
_D = f"{_M1}/deployments"
_D1 = f"{_D}/{{deployment_id}}"
_E = f"{_M1}/environments"
_E1 = f"{_E}/{{environment_name}}"
_TAG, _PAGE = "Models", PageQueryV1
_MODEL, _MODELS = schemas.ModelV1, schemas.ModelsResponseV1
_DEPLOYMENT, _DEPLOYMENTS = schemas.DeploymentV1, schemas.DeploymentsResponseV1
_ENVIRONMENT, _ENVIRONMENTS = schemas.EnvironmentV1, schemas.EnvironmentsResponseV1
_NEW_MODEL, _NEW_DEPLOYMENT = CreateModelRequestV1, CreateDeploymentRequestV1
_REPLICAS, _POINTER = SetReplicasRequestV1, SetEnvironmentRequestV1
OPERATIONS = (
    Operation("POST", _M, _post_model, "Register a model", _MODEL, body=_NEW_MODEL, errors=(400,), tag=_TAG),
    Operation("GET", _M, _list_models, "List models", _MODELS, query=_PAGE, errors=(400,), tag=_TAG),
    Operation("GET", _M1, _get_model, "Get a model", _MODEL, errors=(404,), tag=_TAG),
    Operation(
        *("POST", _D, _post_deployment, "Register a deployment", _DEPLOYMENT),
        body=_NEW_DEPLOYMENT,
        errors=(400, 404, 409),
        tag=_TAG,
    ),
    Operation("GET", _D, _list_deployments, "List deployments", _DEPLOYMENTS, query=_PAGE, errors=(400, 404), tag=_TAG),
    Operation("GET", _D1, _get_deployment, "Get a deployment", _DEPLOYMENT, errors=(404,), tag=_TAG),
    Operation(
        *("PUT", f"{_D1}/replicas", _put_replicas, "Set a deployment's replicas", _DEPLOYMENT),
        body=_REPLICAS,
        errors=(400, 404, 409),
        tag=_TAG,
    ),
    Operation(
        *("PUT", _E1, _put_environment, "Point an environment to a deployment", _ENVIRONMENT),
        body=_POINTER,
        errors=(400, 404, 409),
        tag=_TAG,
    ),
    Operation(
        "GET", _E, _list_environments, "List environments", _ENVIRONMENTS, query=_PAGE, errors=(400, 404), tag=_TAG
    ),
    Operation("GET", _E1, _get_environment, "Get an environment", _ENVIRONMENT, errors=(404,), tag=_TAG),
)
