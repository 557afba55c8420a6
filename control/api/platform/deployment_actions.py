"""Activate, deactivate and retry of deployments.

See docs/reference/management-api.md#deployments and docs/reference/management-api.md#request-limits.
"""

from functools import partial

from control.api.platform import deployment_schemas as schemas
from control.api.platform.deployments import ENVIRONMENTS_IN_PATHS, deployment_ref, shown
from control.api.protocol.operations import ApiRequest, Operation
from control.resources.platform import deployments
from policy.keys.permissions import Permission


async def _post_activate(request: ApiRequest, environment: str | None = None) -> schemas.DeploymentChangedV1:
    ref = deployment_ref(request, environment)
    await deployments.activate_deployment(request.store, request.dependencies.loads, ref)
    return schemas.DeploymentChangedV1(success=True)


async def _post_deactivate(request: ApiRequest, environment: str | None = None) -> schemas.DeploymentChangedV1:
    await deployments.deactivate_deployment(request.store, deployment_ref(request, environment))
    return schemas.DeploymentChangedV1(success=True)


async def _post_retry(request: ApiRequest, environment: str | None = None) -> schemas.DeploymentRetriedV1:
    ref = deployment_ref(request, environment)
    retried, record = await deployments.retry_deployment(request.store, request.dependencies.loads, ref)
    reason = None if retried else f"the deployment has not failed: it is {record.status}"
    return schemas.DeploymentRetriedV1(retried=retried, reason=reason, deployment=await shown(request, record))


def _actions(path: str, what: str, environment: str | None) -> list[Operation]:
    changed = schemas.DeploymentChangedV1
    retried = schemas.DeploymentRetriedV1
    verbs = (
        ("activate", _post_activate, changed),
        ("deactivate", _post_deactivate, changed),
        ("retry", _post_retry, retried),
    )
    return [
        Operation(
            *("POST", f"/v1/models/{{model_id}}/{path}/{verb}", partial(handler, environment=environment)),
            *(f"{verb.capitalize()} {what}", answer),
            errors=(404,),
            needs=Permission.WORKLOADS,
        )
        for verb, handler, answer in verbs
    ]


OPERATIONS = (
    *(
        operation
        for name in ENVIRONMENTS_IN_PATHS
        for operation in _actions(f"deployments/{name}", f"the {name} deployment", name)
    ),
    *_actions("deployments/{deployment_id}", "a deployment", None),
    *_actions("environments/{environment_name}", "an environment's deployment", None),
)
