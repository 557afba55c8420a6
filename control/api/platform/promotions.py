"""Promotion of deployments: an environment is pointed to a deployment.

See docs/reference/management-api.md#environments.
"""

from functools import partial

from control.api.platform.deployment_schemas import DeploymentChangedV1, DeploymentV1
from control.api.platform.deployments import deployment_ref, shown
from control.api.platform.fixed_settings import PromotedSettingsRequestV1, PromotionRequestV1
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import IdText, RequestV1
from control.errors import NoPromotionError
from control.resources.platform import deployments, environments
from control.resources.platform.deployments import DeploymentRef
from policy.deployments import DEFAULT_ENVIRONMENT, DEVELOPMENT, comparable_name
from policy.keys.permissions import Permission


class _PromotionV1(RequestV1):
    preserve_env_instance_type: bool | None = None
    environment_settings_update: PromotedSettingsRequestV1 | None = None
    promotion_settings_override: PromotionRequestV1 | None = None


class PromoteDeploymentRequestV1(_PromotionV1):
    """Points `production` to a deployment. Replicas of the deployment before stay, whatever is asked of them."""

    scale_down_previous_production: bool | None = None


class PromoteToEnvironmentRequestV1(_PromotionV1):
    """The deployment to point an environment to. Replicas of the one before stay, whatever is asked of them."""

    deployment_id: IdText
    scale_down_previous_deployment: bool | None = None


async def _post_to_environment(request: ApiRequest) -> DeploymentV1:
    id = request.body_as(PromoteToEnvironmentRequestV1).deployment_id
    model_id = request.path["model_id"]
    name = request.path["environment_name"]
    # Every model has a place for production. Another name must be there, so that a typing error makes none.
    if comparable_name(name) != DEFAULT_ENVIRONMENT:
        await environments.read_environment(request.store, request.workspace_id, model_id, name)
    return await _promoted(request, name, DeploymentRef(request.workspace_id, model_id, id))


async def _post_to_production(request: ApiRequest, environment: str | None = None) -> DeploymentV1:
    return await _promoted(request, DEFAULT_ENVIRONMENT, deployment_ref(request, environment))


async def _promoted(request: ApiRequest, name: str, ref: DeploymentRef) -> DeploymentV1:
    deployment = await deployments.read_deployment(request.store, ref)
    owner = (request.store, request.workspace_id)
    await environments.point_environment(*owner, ref.model_id, name, deployment.id)
    return await shown(request, deployment)


async def _post_to_promotion(request: ApiRequest) -> DeploymentChangedV1:
    await environments.read_environment(
        request.store, request.workspace_id, request.path["model_id"], request.path["environment_name"]
    )
    raise NoPromotionError


_DEPLOYMENTS = "/v1/models/{model_id}/deployments"
_ENVIRONMENT = "/v1/models/{model_id}/environments/{environment_name}"
_VERBS = ("pause", "resume", "cancel", "force_cancel", "force_roll_forward")
_TO_PRODUCTION = ((DEVELOPMENT, DEVELOPMENT), ("{deployment_id}", None))
OPERATIONS = (
    *(
        Operation(
            *("POST", f"{_DEPLOYMENTS}/{where}/promote", partial(_post_to_production, environment=environment)),
            *(f"Promote {'the development' if environment else 'a'} deployment to production", DeploymentV1),
            body=PromoteDeploymentRequestV1,
            errors=(400, 404, 409),
            needs=Permission.WORKLOADS,
        )
        for where, environment in _TO_PRODUCTION
    ),
    Operation(
        *("POST", f"{_ENVIRONMENT}/promote", _post_to_environment),
        *("Promote a deployment to an environment", DeploymentV1),
        body=PromoteToEnvironmentRequestV1,
        errors=(400, 404, 409),
        needs=Permission.WORKLOADS,
    ),
    *(
        Operation(
            *("POST", f"{_ENVIRONMENT}/{verb}_promotion", _post_to_promotion),
            *(f"{verb.replace('_', ' ').capitalize()} a promotion", DeploymentChangedV1),
            errors=(404, 409),
            needs=Permission.WORKLOADS,
        )
        for verb in _VERBS
    ),
)
