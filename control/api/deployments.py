"""Activate, deactivate and retry of deployments.

See docs/reference/management-api.md#deployments and docs/reference/management-api.md#request-limits.
"""

from dataclasses import replace
from functools import partial

from control.api import deployment_schemas as schemas
from control.api.deployment_schemas import deployment_response
from control.api.models import deployment_ref
from control.api.protocol.operations import ApiRequest, Operation
from control.resources.platform import deployments
from control.resources.platform.deployments import DeploymentRef


async def _post_activate(request: ApiRequest, environment: str | None = None) -> schemas.DeploymentChangedV1:
    await deployments.activate_deployment(request.store, _ref(request, environment))
    return schemas.DeploymentChangedV1(success=True)


async def _post_deactivate(request: ApiRequest, environment: str | None = None) -> schemas.DeploymentChangedV1:
    await deployments.deactivate_deployment(request.store, _ref(request, environment))
    return schemas.DeploymentChangedV1(success=True)


async def _post_retry(request: ApiRequest, environment: str | None = None) -> schemas.DeploymentRetriedV1:
    retried, record = await deployments.retry_deployment(request.store, _ref(request, environment))
    names = await deployments.environments_by_deployment(request.store, record.model_id)
    reason = None if retried else f"the deployment has not failed: it is {record.status}"
    deployment = deployment_response(record, names.get(record.id))
    return schemas.DeploymentRetriedV1(retried=retried, reason=reason, deployment=deployment)


def _ref(request: ApiRequest, environment: str | None) -> DeploymentRef:
    """The deployment by its id, or by the environment that the path names instead."""
    return replace(deployment_ref(request), environment=environment)


def _verbs(where: str, environment: str | None) -> list[Operation]:
    changed, retried = schemas.DeploymentChangedV1, schemas.DeploymentRetriedV1
    what = f"the {environment} deployment" if environment else "a deployment"
    verbs = (
        ("activate", _post_activate, changed),
        ("deactivate", _post_deactivate, changed),
        ("retry", _post_retry, retried),
    )
    return [
        Operation(
            *("POST", f"{_BASE}/{where}/{verb}", partial(handler, environment=environment)),
            *(f"{verb.capitalize()} {what}", answer),
            errors=(404,),
            tag="Models",
        )
        for verb, handler, answer in verbs
    ]


_BASE = "/v1/models/{model_id}/deployments"
OPERATIONS = (
    *_verbs("development", "development"),
    *_verbs("production", "production"),
    *_verbs("{deployment_id}", None),
)
