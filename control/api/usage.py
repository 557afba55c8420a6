"""Usage of a group's limits: `GET /v1/gateway/groups/{id}/usage` of usage limits, `…/limits` of all.

See docs/reference/management-api.md#group-usage and docs/reference/management-api.md#group-limits.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any

import orjson

from control.api.limit_schemas import TypeName, UnitName, UsageUnitName
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
from policy.keys.permissions import Permission
from policy.limits.kinds import USAGE_UNITS, Unit
from policy.limits.windows import until_end_ms


class GroupUsageEntryV1(ResponseV1):
    """One usage limit and its current usage. `source_group`: the group that sets the limit."""

    slug: str
    type: TypeName
    unit: UsageUnitName
    threshold: int
    current_usage: int
    reset_at: TimeText
    source_group: str


class GroupUsageResponseV1(ResponseV1):
    """The usage of a group, ordered by slug, type and unit."""

    items: list[GroupUsageEntryV1]
    pagination: PaginationResponseV1


class GroupLimitV1(ResponseV1):
    """A limit that binds a group's calls to a slug, and what counts against it now.

    `binds`: of the limits of this slug and type, the one with the least left, which refuses first. `resets_in_s`: until
    nothing of `current_usage` counts any more; null when a rolling window counts nothing.
    """

    slug: str
    type: TypeName
    unit: UnitName
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
    parts = request.dependencies
    group_id = request.path["group_id"]
    group = await read_group(parts.store, request.workspace_id, group_id)
    (entries,) = await read_usage(parts.counters, [group.path])
    ends = await window_ends(parts.counters)

    async def fetch(at: Position[LimitUse]) -> list[LimitUse]:
        behind = [entry for entry in entries if at.after is None or _place(entry) > [*at.after, len(Unit)]]
        return behind[: at.limit]

    def encode(entry: LimitUse) -> Pieces:
        return (orjson.dumps(shown_usage(entry, ends)),)

    return await list_page(request, Listing(f"usage of {group_id}", fetch, _place, encode))


def _place(entry: LimitUse) -> list[Any]:
    """An entry's place in the list. A cursor of the last release ends before the unit."""
    return list(entry.place[:3])


async def window_ends(source: UsageSource | None) -> Mapping[Unit, str]:
    """The `reset_at` of all usage limits of a unit."""
    now_ms = await usage_clock_ms(source)
    return {unit: time_text(now_ms + until_end_ms(unit, now_ms)) for unit in USAGE_UNITS}


def shown_usage(entry: LimitUse, ends: Mapping[Unit, str]) -> dict[str, Any]:
    """A `GroupUsageEntryV1`."""
    limit = entry.bound.limit
    return {
        "slug": entry.slug,
        "type": limit.type.value,
        "unit": limit.unit.value,
        "threshold": limit.threshold,
        "current_usage": entry.usage.amount,
        "reset_at": ends[limit.unit],
        "source_group": entry.bound.source_group,
    }


async def _get_limits(request: ApiRequest) -> Encoded:
    parts = request.dependencies
    group_id = request.path["group_id"]
    group = await read_group(parts.store, request.workspace_id, group_id)
    limits = await GroupLimits.of(group.path)

    async def fetch(at: Position[LimitUse]) -> list[LimitUse]:
        return await limits.read(parts.counters, None if at.after is None else LimitPlace(*at.after), at.limit)

    kind = f"limits of {group_id}"
    encode = encoder(shown_limit)
    return await list_page(request, Listing(kind, fetch, lambda use: list(use.place), encode))


def shown_limit(use: LimitUse) -> GroupLimitV1:
    limit = use.bound.limit
    usage = use.usage
    return GroupLimitV1(
        slug=use.slug,
        type=limit.type.value,
        unit=limit.unit.value,
        threshold=limit.threshold,
        current_usage=usage.amount,
        source_group=use.bound.source_group,
        counting_group=use.bound.counting_group,
        binds=use.binds,
        resets_in_s=ceil(usage.resets_in_ms / 1000) or None,
    )


OPERATIONS = (
    Operation(
        *("GET", "/v1/gateway/groups/{group_id}/usage", _get_usage, "Get the usage of a group", GroupUsageResponseV1),
        query=PageQueryV1,
        errors=(404,),
        needs=Permission.READ,
    ),
    Operation(
        *("GET", "/v1/gateway/groups/{group_id}/limits", _get_limits),
        *("Get a group's limits and what counts against them now", GroupLimitsResponseV1),
        query=PageQueryV1,
        errors=(404,),
        needs=Permission.READ,
    ),
)
