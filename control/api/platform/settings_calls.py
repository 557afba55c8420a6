"""Changes of settings that clients of the original know and Tollgate has not: they may ask for nothing.

See docs/reference/management-api.md#settings-of-other-products.
"""

from functools import partial
from typing import Literal

from control.api.platform.deployments import ENVIRONMENTS_IN_PATHS, deployment_ref
from control.api.platform.fixed_settings import (
    BACKPRESSURE_SETTINGS,
    AutoscalingRequestV1,
    BackpressureRequestV1,
    BackpressureSettingsV1,
)
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import DeletedV1, RequestV1, ResponseV1
from control.errors import NoBuildConfigError, NoReplicaEndError
from control.resources.platform import deployments
from policy.keys.permissions import Permission


class DeploymentConfigV1(ResponseV1):
    """The configuration of a build, which no deployment has."""

    config: None
    raw_config: None


class DeploymentConfigQueryV1(RequestV1):
    """The form of the configuration."""

    output_format: Literal["raw", "parsed", "both"] = "both"


class EndedReplicaV1(DeletedV1):
    """The end of a replica, which is its owner's to bring about."""

    success: bool


class SettingsUnchangedV1(ResponseV1):
    """The outcome of a change that asked for nothing."""

    status: Literal["UNCHANGED"]
    message: str


async def _patch_autoscaling(request: ApiRequest, environment: str | None = None) -> SettingsUnchangedV1:
    await deployments.read_deployment(request.store, deployment_ref(request, environment))
    message = "nothing was asked for: the owner of a deployment scales it, and lists its replicas"
    return SettingsUnchangedV1(status="UNCHANGED", message=message)


async def _patch_backpressure(request: ApiRequest) -> BackpressureSettingsV1:
    await deployments.read_deployment(request.store, deployment_ref(request))
    return BackpressureSettingsV1(**BACKPRESSURE_SETTINGS)


async def _get_config(request: ApiRequest) -> DeploymentConfigV1:
    await deployments.read_deployment(request.store, deployment_ref(request))
    raise NoBuildConfigError


async def _delete_replica(request: ApiRequest) -> EndedReplicaV1:
    await deployments.read_deployment(request.store, deployment_ref(request))
    raise NoReplicaEndError


_DEPLOYMENTS = "/v1/models/{model_id}/deployments"


def _autoscaling(where: str, what: str, environment: str | None) -> Operation:
    handler = partial(_patch_autoscaling, environment=environment)
    return Operation(
        *("PATCH", f"{_DEPLOYMENTS}/{where}/autoscaling_settings", handler),
        *(f"Autoscaling of {what}", SettingsUnchangedV1),
        body=AutoscalingRequestV1,
        errors=(404,),
        needs=Permission.WORKLOADS,
    )


OPERATIONS = (
    *(_autoscaling(name, f"the {name} deployment", name) for name in ENVIRONMENTS_IN_PATHS),
    _autoscaling("{deployment_id}", "a deployment", None),
    Operation(
        *("PATCH", f"{_DEPLOYMENTS}/{{deployment_id}}/request_backpressure_settings", _patch_backpressure),
        *("Backpressure of a deployment", BackpressureSettingsV1),
        body=BackpressureRequestV1,
        errors=(404,),
        needs=Permission.WORKLOADS,
    ),
    Operation(
        *("GET", f"{_DEPLOYMENTS}/{{deployment_id}}/config", _get_config),
        *("Configuration of a deployment's build", DeploymentConfigV1),
        query=DeploymentConfigQueryV1,
        errors=(404,),
        needs=Permission.READ,
    ),
    Operation(
        *("DELETE", f"{_DEPLOYMENTS}/{{deployment_id}}/replicas/{{replica_id}}", _delete_replica),
        *("End a replica of a deployment", EndedReplicaV1),
        errors=(404, 409),
        needs=Permission.WORKLOADS,
    ),
)
