"""`/v1/training/capacity`: the GPUs that jobs can have, and those that they have.

See docs/reference/training.md#capacity.
"""

from pydantic import Field

from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import ResponseV1
from control.resources.training.errors import CapacityFixedError
from control.resources.training_hosts import gpu_capacity
from control.resources.training_hosts.gpu_capacity import GpuUse
from policy.keys.permissions import Permission


class GpuCapacityV1(ResponseV1):
    """The GPUs of one type. `limit`: those of all machines. `usage_count`: those that jobs of all workspaces have."""

    gpu_type: str
    baseline: int = Field(description="Always 0: nothing is set aside.")
    limit: int
    usage_count: int
    dedicated_usage_count: int
    spot_usage_count: int


class TeamGpuCapacityV1(GpuCapacityV1):
    """The same for the workspace. `limit`: those of all machines, since a workspace has no share of its own."""

    team_id: str
    team_name: str


class TrainingCapacityV1(ResponseV1):
    """The GPUs of the training backend by type."""

    gpu_capacities: list[GpuCapacityV1]
    team_gpu_capacities: list[TeamGpuCapacityV1]


class ChangedTrainingCapacityV1(ResponseV1):
    """The changed capacity of a workspace."""

    team_gpu_capacity: TeamGpuCapacityV1


async def _get(request: ApiRequest) -> TrainingCapacityV1:
    uses, own_uses = await gpu_capacity.read_capacity(request.store, request.workspace_id)
    team = {"team_id": request.workspace_id, "team_name": request.caller.workspace_name}
    return TrainingCapacityV1.model_validate(
        {
            "gpu_capacities": [_members(use) for use in uses],
            "team_gpu_capacities": [team | _members(use) for use in own_uses],
        }
    )


async def _patch(_: ApiRequest) -> ChangedTrainingCapacityV1:
    raise CapacityFixedError


def _members(use: GpuUse) -> dict[str, int | str]:
    return {
        "gpu_type": use.gpu_type,
        "baseline": 0,
        "limit": use.total,
        "usage_count": use.used,
        "dedicated_usage_count": use.dedicated,
        "spot_usage_count": use.spot,
    }


_PATH = "/v1/training/capacity"
OPERATIONS = (
    Operation(
        *("GET", _PATH, _get, "Get the GPUs of the training backend", TrainingCapacityV1),
        needs=Permission.READ,
    ),
    Operation(
        *("PATCH", _PATH, _patch, "Change the GPUs of a workspace", ChangedTrainingCapacityV1),
        errors=(409,),
        needs=Permission.WORKLOADS,
    ),
)
