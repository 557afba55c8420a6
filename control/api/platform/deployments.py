"""`/v1/models/{model_id}/deployments`: settings, replicas, and the status that a launcher reports.

See docs/reference/management-api.md#deployments.
"""

from collections.abc import Sequence
from functools import partial

from control.api.platform import deployment_schemas as schemas
from control.api.platform.deployment_schemas import DeploymentV1, deployment_response
from control.api.protocol.encoding import Encoded
from control.api.protocol.lists import Listing, Position, encoder, list_page
from control.api.protocol.operations import ApiRequest, Operation
from control.records.models import DeploymentRecord, PageOfNames
from control.resources.platform import deployments
from control.resources.platform.deployments import DeploymentRef, DeploymentSummary
from policy.deployments import DEFAULT_ENVIRONMENT, DEVELOPMENT
from policy.keys.permissions import Permission

ENVIRONMENTS_IN_PATHS = (DEVELOPMENT, DEFAULT_ENVIRONMENT)
"""The environments whose names may stand in place of a deployment's id."""


async def _post(request: ApiRequest) -> DeploymentV1:
    parts = request.dependencies
    settings = request.body_as(schemas.CreateDeploymentRequestV1).settings()
    record = await deployments.create_deployment(parts.store, parts.names, deployment_ref(request), settings)
    return await shown(request, record)


async def _get(request: ApiRequest, environment: str | None = None) -> DeploymentV1:
    return await shown(request, await deployments.read_deployment(request.store, deployment_ref(request, environment)))


async def _patch(request: ApiRequest, environment: str | None = None) -> DeploymentV1:
    parts = request.dependencies
    settings = request.body_as(schemas.UpdateDeploymentRequestV1).settings()
    ref = deployment_ref(request, environment)
    return await shown(request, await deployments.change_settings(parts.store, parts.names, ref, settings))


async def _delete(request: ApiRequest, environment: str | None = None) -> schemas.DeletedDeploymentV1:
    ref = deployment_ref(request, environment)
    id = await deployments.remove_deployment(request.store, ref)
    return schemas.DeletedDeploymentV1(id=id, model_id=ref.model_id)


async def _list(request: ApiRequest) -> Encoded:
    model_id = request.path["model_id"]
    parts = request.dependencies

    async def fetch(at: Position[DeploymentSummary]) -> Sequence[DeploymentSummary]:
        page = PageOfNames(at.after, at.limit, at.filters.get("name"))
        records = await deployments.read_deployments(request.store, deployment_ref(request), page)
        return await deployments.summarize(parts.store, parts.loads, model_id, records)

    kind = f"deployments {model_id}"
    encode = encoder(deployment_response)
    listing = Listing(kind, fetch, lambda item: item.record.id, encode, ("name",), first=8, name="deployments")
    return await list_page(request, listing)


async def _put_replicas(request: ApiRequest) -> DeploymentV1:
    parts = request.dependencies
    urls = request.body_as(schemas.SetReplicasRequestV1).replicas
    replicas = await deployments.check_replicas(parts.names, urls)
    record = await deployments.replace_replicas(parts.store, parts.loads, deployment_ref(request), replicas)
    return await shown(request, record)


async def _put_status(request: ApiRequest) -> DeploymentV1:
    parts = request.dependencies
    body = request.body_as(schemas.SetStatusRequestV1)
    ref = deployment_ref(request)
    record = await deployments.report_status(parts.store, parts.deployment_logs, ref, body.status, body.error_message)
    return await shown(request, record)


def deployment_ref(request: ApiRequest, environment: str | None = None) -> DeploymentRef:
    """The deployment by its id, or by the environment that the path names instead."""
    path = request.path
    name = environment or path.get("environment_name")
    return DeploymentRef(request.workspace_id, path["model_id"], path.get("deployment_id"), name)


async def shown(request: ApiRequest, record: DeploymentRecord) -> DeploymentV1:
    """The deployment as answers show it."""
    parts = request.dependencies
    (summary,) = await deployments.summarize(parts.store, parts.loads, record.model_id, [record])
    return deployment_response(summary)


def _operations_on_one(where: str, environment: str | None) -> list[Operation]:
    what = f"the {environment} deployment" if environment else "a deployment"
    path = f"{_PATH}/{where}"

    get, patch, delete = (partial(handler, environment=environment) for handler in (_get, _patch, _delete))
    return [
        Operation(
            *("PATCH", path, patch, f"Change {what}", DeploymentV1),
            body=schemas.UpdateDeploymentRequestV1,
            errors=(400, 404, 409),
            needs=Permission.WORKLOADS,
        ),
        Operation("GET", path, get, f"Get {what}", DeploymentV1, errors=(404,), needs=Permission.READ),
        Operation(
            *("DELETE", path, delete, f"Delete {what}", schemas.DeletedDeploymentV1),
            errors=(404, 409),
            needs=Permission.WORKLOADS,
        ),
    ]


_PATH = "/v1/models/{model_id}/deployments"
_ONE = f"{_PATH}/{{deployment_id}}"
OPERATIONS = (
    Operation(
        *("POST", _PATH, _post, "Register a deployment", DeploymentV1),
        body=schemas.CreateDeploymentRequestV1,
        errors=(400, 404, 409),
        needs=Permission.WORKLOADS,
        creates=True,
    ),
    Operation(
        *("GET", _PATH, _list, "List deployments", schemas.DeploymentsResponseV1),
        query=schemas.DeploymentsQueryV1,
        errors=(400, 404),
        needs=Permission.READ,
    ),
    *(operation for name in ENVIRONMENTS_IN_PATHS for operation in _operations_on_one(name, name)),
    *_operations_on_one("{deployment_id}", None),
    Operation(
        *("PUT", f"{_ONE}/replicas", _put_replicas, "Set a deployment's replicas", DeploymentV1),
        body=schemas.SetReplicasRequestV1,
        errors=(400, 404, 409),
        needs=Permission.WORKLOADS,
    ),
    Operation(
        *("PUT", f"{_ONE}/status", _put_status, "Report a deployment's status", DeploymentV1),
        body=schemas.SetStatusRequestV1,
        errors=(400, 404, 409),
        needs=Permission.WORKLOADS,
    ),
)
