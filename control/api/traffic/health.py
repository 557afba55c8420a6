"""`GET /v1/gateway/health`: what of a workspace does not work now, at a glance.

See docs/reference/management-api.md#health-at-a-glance.
"""

from typing import Literal

from pydantic import Field

from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import ResponseV1
from control.resources.traffic.health import PartHealth, read_health
from policy.keys.permissions import Permission


class PartHealthV1(ResponseV1):
    """The health of one part. A `total` of 0: the workspace has none, or none has ever reported."""

    part: Literal["webhooks", "endpoints", "launchers", "proxies", "trainer", "control"]
    total: int
    failing: int = Field(description="How many of them do not work now.")
    names: list[str] = Field(description="The first of them; of control, what does not work.")


class HealthResponseV1(ResponseV1):
    """The health of each part."""

    items: list[PartHealthV1]


async def _get(request: ApiRequest) -> HealthResponseV1:
    parts = await read_health(request.store, request.workspace_id)
    degraded = await request.dependencies.readiness.degraded()
    control = PartHealth("control", 1, int(bool(degraded)), degraded)
    return HealthResponseV1(items=[PartHealthV1(**one._asdict()) for one in (*parts, control)])


OPERATIONS = (
    Operation("GET", "/v1/gateway/health", _get, "Show health at a glance", HealthResponseV1, needs=Permission.READ),
)
