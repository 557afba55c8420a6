"""`GET /v1/gateway/groups/{group_id}/usage`: a group's daily limits, and what is used of them.

See docs/reference/management-api.md#group-usage.
"""

import time
from typing import Literal

from control.api.protocol.encoding import Encoded
from control.api.protocol.errors import ProblemError
from control.api.protocol.lists import Listing, Position, page_of, shown
from control.api.protocol.operations import Call, Operation
from control.api.protocol.schemas import (
    AnswerV1,
    PageQueryV1,
    PaginationResponseV1,
    TimeText,
    time_text,
)
from control.edges.redis.usage_counters import CountersUnavailableError
from control.resources.billing_events import UsageEntry, usage_of
from control.resources.groups import place_group
from policy.limits.windows import until_midnight_ms


class GroupUsageEntryV1(AnswerV1):
    """One daily limit. `source_group` is the group that it is anchored to."""

    slug: str
    type: Literal["TOKEN", "REQUEST"]
    unit: Literal["DAY"] = "DAY"
    threshold: int
    current_usage: int
    reset_at: TimeText
    source_group: str


class GroupUsageResponseV1(AnswerV1):
    """The usage of a group, by slug and type."""

    items: list[GroupUsageEntryV1]
    pagination: PaginationResponseV1


async def group_usage(call: Call) -> Encoded:
    parts, group_id = call.parts, call.path["group_id"]
    async with parts.store.read() as conn:
        placed = await place_group(conn, call.caller.workspace_id, group_id)
    try:
        entries = await usage_of(parts.counters, placed.path)
        now_ms = await parts.counters.now_ms() if parts.counters is not None else time.time_ns() // 1_000_000
    except CountersUnavailableError:
        raise ProblemError(503, "COUNTERS_UNAVAILABLE", "Usage cannot be told right now; try again") from None

    async def fetch(at: Position[UsageEntry]) -> list[UsageEntry]:
        behind = [entry for entry in entries if at.after is None or [entry.slug, entry.type] > at.after]
        return behind[: at.limit]

    reset_at = time_text(now_ms + until_midnight_ms(now_ms))

    def show(entry: UsageEntry) -> GroupUsageEntryV1:
        return _entry(entry, reset_at)

    kind, encode = f"usage of {group_id}", shown(show)
    return await page_of(call, Listing(kind, fetch, lambda entry: [entry.slug, entry.type], encode))


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
        group_usage,
        "Get the usage of a group",
        GroupUsageResponseV1,
        query=PageQueryV1,
        errors=(404,),
    ),
)
