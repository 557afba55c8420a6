"""`/v1/models`: platform models, their deployments, replicas and environments.

See docs/reference/management-api.md#models.
"""

import re
from collections.abc import Sequence

from control.api import deployment_schemas as forms
from control.api.deployment_schemas import (
    CreateDeploymentRequestV1,
    CreateModelRequestV1,
    SetEnvironmentRequestV1,
    SetReplicasRequestV1,
    shown_deployment,
    shown_environment,
    shown_model,
)
from control.api.endpoints import ENVIRONMENT_PATTERN
from control.api.protocol.encoding import Encoded
from control.api.protocol.errors import bad_field, not_found
from control.api.protocol.lists import Listing, Position, page_of, shown
from control.api.protocol.operations import Call, Operation
from control.api.protocol.schemas import PageQueryV1
from control.edges.sql import model_rows
from control.edges.sql.model_rows import DeploymentRecord, EnvironmentRecord, ModelRecord
from control.resources import deployments
from control.resources.deployments import Place
from policy.endpoints import EndpointRuleError


async def create_model(call: Call) -> forms.ModelV1:
    name = call.body_as(CreateModelRequestV1).name
    return shown_model(await deployments.create_model(call.parts.store, call.caller.workspace_id, name))


async def get_model(call: Call) -> forms.ModelV1:
    async with call.parts.store.read() as conn:
        return shown_model(await deployments.find_model(conn, call.caller.workspace_id, call.path["model_id"]))


async def list_models(call: Call) -> Encoded:
    async def fetch(at: Position[ModelRecord]) -> Sequence[ModelRecord]:
        async with call.parts.store.read() as conn:
            return await model_rows.list_models(conn, call.caller.workspace_id, at.after, at.limit)

    return await page_of(call, Listing("models", fetch, lambda record: record.id, shown(shown_model)))


async def create_deployment(call: Call) -> forms.DeploymentV1:
    name = call.body_as(CreateDeploymentRequestV1).name
    return shown_deployment(await deployments.create_deployment(call.parts.store, place_of(call), name), None)


async def get_deployment(call: Call) -> forms.DeploymentV1:
    async with call.parts.store.read() as conn:
        record = await deployments.find_deployment(conn, place_of(call))
        return shown_deployment(record, (await _environments(call)).get(record.id))


async def list_deployments(call: Call) -> Encoded:
    model_id = call.path["model_id"]

    async def fetch(at: Position[DeploymentRecord]) -> Sequence[DeploymentRecord]:
        async with call.parts.store.read() as conn:
            await deployments.find_model(conn, call.caller.workspace_id, model_id)
            return await model_rows.list_deployments(conn, model_id, at.after, at.limit)

    names = await _environments(call)

    def show(record: DeploymentRecord) -> forms.DeploymentV1:
        return shown_deployment(record, names.get(record.id))

    kind, encode = f"deployments {model_id}", shown(show)
    return await page_of(call, Listing(kind, fetch, lambda record: record.id, encode, first=8))


async def set_replicas(call: Call) -> forms.DeploymentV1:
    replicas = call.body_as(SetReplicasRequestV1).replicas
    for index, url in enumerate(replicas):
        try:
            await call.parts.names.check_replica_url(url)
        except EndpointRuleError as error:
            raise bad_field(f"replicas.{index}", error.message) from None
    record = await deployments.set_replicas(call.parts.store, place_of(call), [url.rstrip("/") for url in replicas])
    return shown_deployment(record, (await _environments(call)).get(record.id))


async def set_environment(call: Call) -> forms.EnvironmentV1:
    name = call.path["environment_name"]
    if not re.fullmatch(ENVIRONMENT_PATTERN, name):
        raise bad_field("environment_name", "an environment's name is [A-Za-z0-9][A-Za-z0-9._-]{0,127}")
    deployment_id = call.body_as(SetEnvironmentRequestV1).deployment_id
    return shown_environment(await deployments.point_environment(call.parts.store, place_of(call), name, deployment_id))


async def get_environment(call: Call) -> forms.EnvironmentV1:
    async with call.parts.store.read() as conn:
        model = await deployments.find_model(conn, call.caller.workspace_id, call.path["model_id"])
        record = await model_rows.find_environment(conn, model.id, call.path["environment_name"])
    if record is None:
        raise not_found("environment")
    return shown_environment(record)


async def list_environments(call: Call) -> Encoded:
    model_id = call.path["model_id"]

    async def fetch(at: Position[EnvironmentRecord]) -> Sequence[EnvironmentRecord]:
        async with call.parts.store.read() as conn:
            await deployments.find_model(conn, call.caller.workspace_id, model_id)
            return await model_rows.list_environments(conn, model_id, at.after, at.limit)

    kind, encode = f"environments {model_id}", shown(shown_environment)
    return await page_of(call, Listing(kind, fetch, lambda record: record.name, encode))


def place_of(call: Call) -> Place:
    """The model, and the deployment if the path names one by its id."""
    return Place(call.caller.workspace_id, call.path["model_id"], call.path.get("deployment_id"))


async def _environments(call: Call) -> dict[str, str]:
    async with call.parts.store.read() as conn:
        return await deployments.environments_by_deployment(conn, call.path["model_id"])


_M = "/v1/models"
_M1 = f"{_M}/{{model_id}}"
_D = f"{_M1}/deployments"
_D1 = f"{_D}/{{deployment_id}}"
_E = f"{_M1}/environments"
_E1 = f"{_E}/{{environment_name}}"
_TAG, _PAGE = "Models", PageQueryV1
_MODEL, _MODELS = forms.ModelV1, forms.ModelsResponseV1
_DEPLOYMENT, _DEPLOYMENTS = forms.DeploymentV1, forms.DeploymentsResponseV1
_ENVIRONMENT, _ENVIRONMENTS = forms.EnvironmentV1, forms.EnvironmentsResponseV1
_NEW_MODEL, _NEW_DEPLOYMENT = CreateModelRequestV1, CreateDeploymentRequestV1
_REPLICAS, _POINTER = SetReplicasRequestV1, SetEnvironmentRequestV1
OPERATIONS = (
    Operation("POST", _M, create_model, "Register a model", _MODEL, body=_NEW_MODEL, errors=(400,), tag=_TAG),
    Operation("GET", _M, list_models, "List models", _MODELS, query=_PAGE, errors=(400,), tag=_TAG),
    Operation("GET", _M1, get_model, "Get a model", _MODEL, errors=(404,), tag=_TAG),
    Operation(
        *("POST", _D, create_deployment, "Register a deployment", _DEPLOYMENT),
        body=_NEW_DEPLOYMENT,
        errors=(400, 404, 409),
        tag=_TAG,
    ),
    Operation("GET", _D, list_deployments, "List deployments", _DEPLOYMENTS, query=_PAGE, errors=(400, 404), tag=_TAG),
    Operation("GET", _D1, get_deployment, "Get a deployment", _DEPLOYMENT, errors=(404,), tag=_TAG),
    Operation(
        *("PUT", f"{_D1}/replicas", set_replicas, "Set a deployment's replicas", _DEPLOYMENT),
        body=_REPLICAS,
        errors=(400, 404, 409),
        tag=_TAG,
    ),
    Operation(
        *("PUT", _E1, set_environment, "Point an environment to a deployment", _ENVIRONMENT),
        body=_POINTER,
        errors=(400, 404, 409),
        tag=_TAG,
    ),
    Operation(
        "GET", _E, list_environments, "List environments", _ENVIRONMENTS, query=_PAGE, errors=(400, 404), tag=_TAG
    ),
    Operation("GET", _E1, get_environment, "Get an environment", _ENVIRONMENT, errors=(404,), tag=_TAG),
)
