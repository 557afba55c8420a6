"""How much of a group's limits is used: `GET /v1/gateway/groups/{group_id}/usage` of the daily ones, `…/limits` of all.

See docs/reference/management-api.md#group-usage and docs/reference/management-api.md#group-limits.
"""

from math import ceil
from typing import Any, Literal

import orjson

from control.api.protocol.encoding import Encoded, Pieces
from control.api.protocol.lists import Listing, Position, encoder, list_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import PageQueryV1, PaginationResponseV1, ResponseV1, TimeText
from control.records.times import time_text
from control.resources.group_usage import (
    GroupLimits,
    LimitPlace,
    LimitUse,
    UsageSource,
    read_usage,
    usage_clock_ms,
)
from control.resources.groups import read_group
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


class GroupLimitV1(ResponseV1):
    """A limit that binds a group's calls to a slug, and what counts against it now.

    `binds`: of the limits of this slug and type, the one with the least left, which refuses first. `resets_in_s`: until
    nothing of `current_usage` counts any more; null when a rolling window counts nothing.
    """

    slug: str
    type: Literal["TOKEN", "REQUEST"]
    unit: Literal["SECOND", "MINUTE", "DAY"]
    threshold: int
    current_usage: int
    source_group: str
    counting_group: str
    binds: bool
    resets_in_s: int | None


class GroupLimitsResponseV1(ResponseV1):
    """The limits that bind a group, ordered by slug, type, unit, and from the group to its root."""

    items: list[GroupLimitV1]
    pagination: PaginationResponseV1


async def _get_usage(request: ApiRequest) -> Encoded:
    parts, group_id = request.dependencies, request.path["group_id"]
    found = await read_group(parts.store, request.workspace_id, group_id)
    (entries,) = await read_usage(parts.counters, [found.path])
    reset_at = await day_end_text(parts.counters)

    async def fetch(at: Position[LimitUse]) -> list[LimitUse]:
        behind = [entry for entry in entries if at.after is None or _slug_and_type(entry) > at.after]
        return behind[: at.limit]

    async def encode(entry: LimitUse) -> Pieces:
        return (orjson.dumps(shown_usage(entry, reset_at)),)

    return await list_page(request, Listing(f"usage of {group_id}", fetch, _slug_and_type, encode))


def _slug_and_type(entry: LimitUse) -> list[str]:
    return [entry.slug, entry.bound.limit.type]


async def day_end_text(source: UsageSource | None) -> str:
    """The `reset_at` of all daily limits."""
    now_ms = await usage_clock_ms(source)
    return time_text(now_ms + until_midnight_ms(now_ms))


def shown_usage(entry: LimitUse, reset_at: str) -> dict[str, Any]:
    """A `GroupUsageEntryV1`."""
    limit = entry.bound.limit
    return {
        "slug": entry.slug,
        "type": limit.type.value,
        "unit": limit.unit.value,
        "threshold": limit.threshold,
        "current_usage": entry.used.amount,
        "reset_at": reset_at,
        "source_group": entry.bound.source_group,
    }


async def _get_limits(request: ApiRequest) -> Encoded:
    parts, group_id = request.dependencies, request.path["group_id"]
    found = await read_group(parts.store, request.workspace_id, group_id)
    limits = await GroupLimits.of(found.path)

    async def fetch(at: Position[LimitUse]) -> list[LimitUse]:
        return await limits.read(parts.counters, None if at.after is None else LimitPlace(*at.after), at.limit)

    kind, encode = f"limits of {group_id}", encoder(shown_limit)
    return await list_page(request, Listing(kind, fetch, lambda use: list(use.place), encode))


def shown_limit(use: LimitUse) -> GroupLimitV1:
    limit, used = use.bound.limit, use.used
    return GroupLimitV1(
        slug=use.slug,
        type=limit.type.value,
        unit=limit.unit.value,
        threshold=limit.threshold,
        current_usage=used.amount,
        source_group=use.bound.source_group,
        counting_group=use.bound.counting_group,
        binds=use.binds,
        resets_in_s=ceil(used.resets_in_ms / 1000) or None,
    )


OPERATIONS = (
    Operation(
        "GET",
        "/v1/gateway/groups/{group_id}/usage",
        _get_usage,
        "Get the usage of a group",
        GroupUsageResponseV1,
        query=PageQueryV1,
        errors=(404,),
    ),
    Operation(
        "GET",
        "/v1/gateway/groups/{group_id}/limits",
        _get_limits,
        "Get a group's limits and what counts against them now",
        GroupLimitsResponseV1,
        query=PageQueryV1,
        errors=(404,),
    ),
)
