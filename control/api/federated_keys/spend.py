"""`GET /v1/gateway/groups/{group_id}/api_keys/{prefix}/spend`. Amounts are decimal text.

See docs/reference/management-api.md#spend-of-a-key.
"""

from control.api.billing.group_spend import BoundSpendV1, shown_spend
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import ResponseV1
from control.resources import keys
from control.resources.federated_keys.key_spend import read_key_spend
from control.resources.keys import KeyOwner
from policy.keys.permissions import Permission


class KeySpendResponseV1(ResponseV1):
    """The spend limits of a key, DAY before MONTH, and what it and the keys that it was rotated to have spent."""

    items: list[BoundSpendV1]


async def _get_spend(request: ApiRequest) -> KeySpendResponseV1:
    parts = request.dependencies
    owner = KeyOwner(request.workspace_id, request.path["group_id"])
    record = await keys.read_key(parts.store, owner, request.path["prefix"])
    spend = await read_key_spend(parts.spend, record)
    return KeySpendResponseV1(items=[BoundSpendV1(**shown_spend(each)) for each in spend])


OPERATIONS = (
    Operation(
        "GET",
        "/v1/gateway/groups/{group_id}/api_keys/{prefix}/spend",
        _get_spend,
        "Get what is spent of a key's spend limits",
        KeySpendResponseV1,
        errors=(404,),
        needs=Permission.READ,
    ),
)
