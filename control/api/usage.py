"""`GET /v1/gateway/groups/{group_id}/usage`: a group's daily limits and how much of each is used.

See docs/reference/management-api.md#group-usage.
"""

from typing import Literal

from control.api.protocol.encoding import Encoded
from control.api.protocol.lists import Listing, Position, encoder, list_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import PageQueryV1, PaginationResponseV1, ResponseV1, TimeText
from control.resources.group_usage import UsageEntry, read_usage
from control.resources.groups import read_group
from control.resources.times import time_text
from policy.limits.windows import until_midnight_ms


class GroupUsageEntryV1(ResponseV1):
    """One daily limit and its current usage. `source_group`: the group that sets the limit."""

    slug: str
    type: Literal["TOKEN", "REQUEST"]
    unit: Literal["DAY"] = "DAY"
    threshold: int
    current_usage: int
    reset_at: TimeText
    source_group: str


class GroupUsageResponseV1(ResponseV1):
    """The usage of a group, ordered by slug and type."""

    items: list[GroupUsageEntryV1]
    pagination: PaginationResponseV1


async def _get(request: ApiRequest) -> Encoded:
    parts, group_id = request.dependencies, request.path["group_id"]
    found = await read_group(parts.store, request.workspace_id, group_id)
    usage = await read_usage(parts.counters, found.path)

    async def fetch(at: Position[UsageEntry]) -> list[UsageEntry]:
        behind = [entry for entry in usage.entries if at.after is None or [entry.slug, entry.type] > at.after]
        return behind[: at.limit]

    reset_at = time_text(usage.now_ms + until_midnight_ms(usage.now_ms))

    def show(entry: UsageEntry) -> GroupUsageEntryV1:
        return _entry(entry, reset_at)

    kind, encode = f"usage of {group_id}", encoder(show)
    return await list_page(request, Listing(kind, fetch, lambda entry: [entry.slug, entry.type], encode))


def _entry(entry: UsageEntry, reset_at: str) -> GroupUsageEntryV1:
    return GroupUsageEntryV1(
        slug=entry.slug,
        type=entry.type.value,
        threshold=entry.threshold,
        current_usage=entry.current_usage,
        reset_at=reset_at,
        source_group=entry.source_group,
    )


OPERATIONS = (
    Operation(
        "GET",
        "/v1/gateway/groups/{group_id}/usage",
        _get,
        "Get the usage of a group",
        GroupUsageResponseV1,
        query=PageQueryV1,
        errors=(404,),
    ),
)
