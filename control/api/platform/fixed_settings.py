"""Settings that clients of the original know and Tollgate has not: replicas and their machines are their owner's.

Answers show the values that are true here. Requests may leave each out, or ask for nothing: null, empty, or that value.
See docs/reference/management-api.md#settings-of-other-products.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from control.api.protocol.schemas import RequestV1, ResponseV1
from control.api.training.job_schemas import InstanceTypeV1

NO_INSTANCE_TYPE = ""
"""The name of the instance type of every model and deployment."""
MAX_REPLICAS = 256
"""The most replicas that an owner may list for a deployment."""


def _must_be_null(value: Any) -> None:
    if value is not None:
        raise ValueError("leave it out: Tollgate neither starts nor scales replicas; their owner lists them")


def _must_be_off(value: Any) -> Any:
    if value is not None and value is not False:
        raise ValueError("leave it out, or write false: a promotion points the environment to the deployment at once")
    return value


def _must_have_no_source(value: Any) -> None:
    if value is not None:
        raise ValueError("leave it out: Tollgate builds no models; register by name, then list the replicas that run")


_Unset = Annotated[None, BeforeValidator(_must_be_null)]
NoSource = Annotated[None, BeforeValidator(_must_have_no_source)]
"""The type of the member that says what a new model or deployment is built from."""
_Off = Annotated[Literal[False] | None, BeforeValidator(_must_be_off)]


class AutoscalingRequestV1(RequestV1):
    """Asks for no scaling."""

    min_replica: _Unset = None
    max_replica: _Unset = None
    autoscaling_window: _Unset = None
    scale_down_delay: _Unset = None
    concurrency_target: _Unset = None
    target_utilization_percentage: _Unset = None
    target_in_flight_tokens: _Unset = None
    max_scale_down_rate: _Unset = None


class PromotionRequestV1(RequestV1):
    """Asks for a promotion at once, which leaves the replicas of the deployment before as they are."""

    redeploy_on_promotion: _Off = None
    rolling_deploy: _Off = None
    promotion_cleanup_strategy: Literal["KEEP"] | None = None
    rolling_deploy_config: _Unset = None
    ramp_up_while_promoting: _Off = None
    ramp_up_duration_seconds: _Unset = None


class BackpressureRequestV1(RequestV1):
    """Asks for no policy: `max_concurrency` and `max_queued` of a deployment say when a call waits or is refused."""

    policy: _Unset = None


class EnvironmentSettingsRequestV1(RequestV1):
    """Settings of an environment, which ask for nothing."""

    autoscaling_settings: AutoscalingRequestV1 | None = None
    promotion_settings: PromotionRequestV1 | None = None
    request_backpressure_settings: BackpressureRequestV1 | None = None


class UpdateEnvironmentRequestV1(EnvironmentSettingsRequestV1):
    """Changes of an environment's settings, which ask for nothing."""

    autoscaling_schedule_settings: _Unset = None
    traffic_routing_settings: _Unset = None


class PromotedSettingsRequestV1(EnvironmentSettingsRequestV1):
    """Changes of an environment's settings with a promotion, which ask for nothing."""

    region: _Unset = None
    instance_type_id: _Unset = None
    autoscaling_schedule_settings: _Unset = None


class AutoscalingSettingsV1(ResponseV1):
    """The bounds within which an owner scales replicas. `concurrency_target`: `max_concurrency`; 0: no bound."""

    min_replica: int
    max_replica: int
    autoscaling_window: None
    scale_down_delay: None
    concurrency_target: int
    target_utilization_percentage: None


class PromotionSettingsV1(ResponseV1):
    """The course of a promotion: at once, and the deployment before keeps its replicas."""

    redeploy_on_promotion: bool
    rolling_deploy: bool
    promotion_cleanup_strategy: str
    rolling_deploy_config: None
    ramp_up_while_promoting: bool
    ramp_up_duration_seconds: int


class BackpressureSettingsV1(ResponseV1):
    """The policy for calls beyond what replicas take: null, since the deployment's own settings say it."""

    policy: None = Field(description="Always null.")


def autoscaling_settings(max_concurrency: int | None) -> dict[str, Any]:
    return {
        "min_replica": 0,
        "max_replica": MAX_REPLICAS,
        "autoscaling_window": None,
        "scale_down_delay": None,
        "concurrency_target": max_concurrency or 0,
        "target_utilization_percentage": None,
    }


PROMOTION_SETTINGS: dict[str, Any] = {
    "redeploy_on_promotion": False,
    "rolling_deploy": False,
    "promotion_cleanup_strategy": "KEEP",
    "rolling_deploy_config": None,
    "ramp_up_while_promoting": False,
    "ramp_up_duration_seconds": 0,
}
BACKPRESSURE_SETTINGS: dict[str, Any] = {"policy": None}
UNKNOWN_INSTANCE_TYPE = InstanceTypeV1(
    id=NO_INSTANCE_TYPE,
    name=NO_INSTANCE_TYPE,
    memory_limit_mib=0,
    millicpu_limit=0,
    gpu_count=0,
    gpu_type=None,
    gpu_memory_limit_mib=None,
)
"""The machines of replicas: Tollgate does not know them."""
