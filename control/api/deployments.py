"""Activate, deactivate, retry and logs of deployments.

See docs/reference/management-api.md#deployments and docs/reference/management-api.md#request-limits.
"""

from dataclasses import replace
from functools import partial

from control.api import deployment_schemas as forms
from control.api.deployment_schemas import shown_deployment
from control.api.models import place_of
from control.api.protocol.operations import Call, Operation
from control.resources import deployments
from control.resources.deployments import Place


async def activate(call: Call, environment: str | None = None) -> forms.DeploymentChangedV1:
    await deployments.activate(call.parts.store, _place(call, environment))
    return forms.DeploymentChangedV1(success=True)


async def deactivate(call: Call, environment: str | None = None) -> forms.DeploymentChangedV1:
    await deployments.deactivate(call.parts.store, _place(call, environment))
    return forms.DeploymentChangedV1(success=True)


async def retry(call: Call, environment: str | None = None) -> forms.DeploymentRetriedV1:
    retried, record = await deployments.retry(call.parts.store, _place(call, environment))
    async with call.parts.store.read() as conn:
        names = await deployments.environments_by_deployment(conn, record.model_id)
    reason = None if retried else f"the deployment has not failed: it is {record.status}"
    deployment = shown_deployment(record, names.get(record.id))
    return forms.DeploymentRetriedV1(retried=retried, reason=reason, deployment=deployment)


async def logs(call: Call) -> forms.DeploymentLogsResponseV1:
    """Replicas are the operator's own and do not send their logs here: there are no lines to select from."""
    async with call.parts.store.read() as conn:
        await deployments.find_deployment(conn, place_of(call))
    return forms.DeploymentLogsResponseV1(logs=[])


def _place(call: Call, environment: str | None) -> Place:
    """By id, or by the environment that stands in its place in the path."""
    return replace(place_of(call), environment=environment)


def _verbs(where: str, environment: str | None) -> list[Operation]:
    changed, retried = forms.DeploymentChangedV1, forms.DeploymentRetriedV1
    what = f"the {environment} deployment" if environment else "a deployment"
    verbs = (("activate", activate, changed), ("deactivate", deactivate, changed), ("retry", retry, retried))
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
    Operation(
        *("POST", f"{_BASE}/{{deployment_id}}/logs", logs, "Read a deployment's log", forms.DeploymentLogsResponseV1),
        body=forms.DeploymentLogsRequestV1,
        errors=(400, 404),
        tag="Models",
    ),
)
