"""`/v1/training_instance_types`: what nodes can get (docs/reference/training.md#instance-types).

`/v1/instance_types`: what models could get: nothing (docs/reference/management-api.md#settings-of-other-products).
"""

from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import ResponseV1
from control.api.training.job_schemas import InstanceTypeV1, instance_type_response
from control.resources.training import backends
from control.resources.training.instance_types import instance_types
from policy.keys.permissions import Permission


class TrainingInstanceTypesResponseV1(ResponseV1):
    """The most that one node gets on each kind of machine, the smallest first. Nodes may ask for less."""

    instance_types: list[InstanceTypeV1]


class InstanceTypesResponseV1(ResponseV1):
    """The machines on which Tollgate runs models: none, since their owner runs the replicas."""

    instance_types: list[InstanceTypeV1]


async def _none(_: ApiRequest) -> InstanceTypesResponseV1:
    return InstanceTypesResponseV1(instance_types=[])


async def _list(request: ApiRequest) -> TrainingInstanceTypesResponseV1:
    types = instance_types(await backends.last_hosts(request.store))
    return TrainingInstanceTypesResponseV1(instance_types=[instance_type_response(type) for type in types])


OPERATIONS = (
    Operation(
        *("GET", "/v1/training_instance_types", _list, "List training instance types", TrainingInstanceTypesResponseV1),
        needs=Permission.READ,
    ),
    Operation(
        *("GET", "/v1/instance_types", _none, "List instance types", InstanceTypesResponseV1),
        needs=Permission.READ,
    ),
)
