"""`/v1/gateway/groups`: the slugs each group may call, and its limits (docs/reference/management-api.md#groups)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, model_validator

from control.api.billing.group_spend import (
    EffectiveSpendLimitV1,
    SpendLimitsRequest,
    SpendLimitV1,
    shown_effective,
    spend_limits_of,
)
from control.api.billing.usage_totals import UsageTotalsV1, optional, shown_totals
from control.api.changes.conditions import tagged
from control.api.changes.ownership import OwnableRequestV1, OwnableResponseV1
from control.api.limit_schemas import (
    ONE_PER_KIND,
    ONE_PER_TYPE,
    RateLimitV1,
    TypeName,
    UnitName,
    UsageLimitV1,
)
from control.api.protocol.authentication import check_permission
from control.api.protocol.encoding import Array, Encoded, Pieces, encode_object
from control.api.protocol.lists import Listing, Position, list_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import (
    INTEGRAL,
    NO_NUL,
    DeletedV1,
    IdText,
    Name,
    PageQueryV1,
    PaginationResponseV1,
    RequestV1,
    ResponseV1,
    SlugText,
    TimeText,
    not_all_null,
)
from control.api.usage import GroupUsageEntryV1, shown_usage, window_ends
from control.long_work import beside
from control.records.policy import GroupFilter, GroupRecord
from control.records.times import time_text
from control.resources import groups
from control.resources.billing.month_usage import GroupMonth, month_of_groups
from control.resources.changes.shown import shown_group
from control.resources.group_usage import LimitUse, read_usage
from control.resources.groups import GroupChange, GroupInTree, NewGroup
from policy.keys.permissions import Permission
from policy.limits.alerts import MAX_PERCENTS, WHOLE
from policy.limits.effective import Bound, bounds_of_each
from policy.limits.groups import MAX_MODELS, Enforcement, Group
from policy.limits.kinds import Unit
from policy.limits.limit import MAX_RATE_LIMITS, MAX_USAGE_LIMITS, Limit, SlugLimits, limit_of
from policy.snapshot import models_entry_to_wire

_Entity = Annotated[
    str, Field(max_length=255, description="Only the group with this external id.", json_schema_extra=NO_NUL)
]
_Switch = Literal["true", "false"]


class GroupModelRequestV1(RequestV1):
    """A slug that the group may call, and its limits."""

    slug: SlugText
    rate_limits: Annotated[list[RateLimitV1], Field(max_length=MAX_RATE_LIMITS)] | None = Field(
        None, description=ONE_PER_TYPE
    )
    usage_limits: Annotated[list[UsageLimitV1], Field(max_length=MAX_USAGE_LIMITS)] | None = Field(
        None, description=ONE_PER_KIND
    )


class GroupMetadataRequestV1(RequestV1):
    """The operator's own id and name for the group. `external_entity_id` is unique in the workspace."""

    external_entity_id: Name = Field(examples=["customer-42"])
    name: Name | None = None


class GroupHierarchyRequestV1(RequestV1):
    """Place in the tree. `limit_enforcement` defaults to the parent's, or to INDEPENDENT without a parent."""

    limit_enforcement: Literal["INDEPENDENT", "CASCADING"] | None = None
    parent_group_id: IdText | None = None


_Percents = Annotated[
    list[Annotated[int, Field(ge=1, le=WHOLE), INTEGRAL]],
    Field(
        max_length=MAX_PERCENTS,
        examples=[[50, 80, 100]],
        description="The percents of DAY and MONTH limits, of spend limits and of the balance"
        " at which webhooks are told (LIMIT_ALERT).",
    ),
]


class CreateGatewayGroupRequestV1(OwnableRequestV1):
    """A new group."""

    metadata: GroupMetadataRequestV1
    models: Annotated[list[GroupModelRequestV1], Field(min_length=1, max_length=MAX_MODELS)]
    hierarchy: GroupHierarchyRequestV1 | None = None
    alert_percents: _Percents | None = None
    spend_limits: SpendLimitsRequest | None = None


class GroupMetadataPatchV1(RequestV1):
    """A null `name` removes the name."""

    name: Name | None


_CHANGING = ("metadata", "models", "alert_percents", "spend_limits")


class UpdateGatewayGroupRequestV1(OwnableRequestV1):
    """`models` replaces the whole list; an empty list removes all access.

    At least one field must not be null, or `managed_by` given.
    """

    metadata: GroupMetadataPatchV1 | None = None
    models: Annotated[list[GroupModelRequestV1], Field(max_length=MAX_MODELS)] | None = None
    alert_percents: _Percents | None = None
    spend_limits: SpendLimitsRequest | None = None

    model_config = OwnableRequestV1.model_config | {
        "json_schema_extra": not_all_null(*_CHANGING, nullable=["managed_by"])
    }

    @model_validator(mode="after")
    def _says_something(self) -> "UpdateGatewayGroupRequestV1":
        is_empty = all(getattr(self, name) is None for name in _CHANGING)
        if is_empty and self.owner_change() is None:
            raise ValueError("give models, metadata.name, alert_percents, spend_limits or managed_by")
        return self


class GroupModelV1(ResponseV1):
    """A slug that the group may call, with the group's own limits."""

    slug: str
    rate_limits: list[RateLimitV1]
    usage_limits: list[UsageLimitV1]


class GroupMetadataV1(ResponseV1):
    """The operator's own id and name for the group."""

    external_entity_id: str
    name: str | None


class GroupHierarchyV1(ResponseV1):
    """The group's place in the tree, and how limits are enforced in it."""

    limit_enforcement: Literal["INDEPENDENT", "CASCADING"]
    parent_group_id: str | None


class EffectiveLimitV1(ResponseV1):
    """A limit that binds the group. `source_group`: the group that sets it, this one or an ancestor."""

    type: TypeName
    unit: UnitName
    threshold: int
    source_group: str


class EffectiveModelV1(ResponseV1):
    """All limits that bind the group's calls to a slug."""

    slug: str
    rate_limits: list[EffectiveLimitV1]
    usage_limits: list[EffectiveLimitV1]


class GroupMonthV1(UsageTotalsV1):
    """The usage of a group with all groups below it. `own`: the part that is its own."""

    own: UsageTotalsV1


class GatewayGroupV1(OwnableResponseV1):
    """A group. `models`, `spend_limits`: its own. The effective ones: with the limits inherited from its ancestors."""

    id: str
    metadata: GroupMetadataV1
    models: list[GroupModelV1]
    effective_models: list[EffectiveModelV1]
    hierarchy: GroupHierarchyV1
    alert_percents: list[int]
    spend_limits: list[SpendLimitV1]
    effective_spend_limits: list[EffectiveSpendLimitV1]
    usage: list[GroupUsageEntryV1] | None = Field(
        None, exclude_if=lambda value: value is None, description="Present only in a list that was asked for it."
    )
    month: GroupMonthV1 | None = optional(
        "The present UTC month. Only in a list that was asked for it; null if it takes too long to add up."
    )
    created_at: TimeText
    updated_at: TimeText


class GatewayGroupsResponseV1(ResponseV1):
    """One page of groups."""

    items: list[GatewayGroupV1]
    pagination: PaginationResponseV1


class DeletedGatewayGroupV1(DeletedV1):
    """The deleted group. All groups below it and all their keys are deleted too."""

    id: str
    parent_group_id: str | None
    metadata: GroupMetadataV1
    deleted_at: TimeText


class GroupsQueryV1(PageQueryV1):
    """Parameters of the list of groups."""

    external_entity_id: _Entity | None = None
    top_group_id: Annotated[IdText | None, Field(description="Only the group with this id, and all below it.")] = None
    effective_models: _Switch = Field("true", description="`false`: `effective_models` is empty.")
    usage: _Switch = Field("false", description="`true`: items have `usage`, what is used of usage limits.")
    month: _Switch = Field("false", description="`true`: items have `month`, their usage of the present UTC month.")


class WriteGroupQueryV1(RequestV1):
    """Parameters of creating and changing a group."""

    dry_run: _Switch = Field("false", description="`true`: checks and answers as if it were done; nothing is saved.")


class DeleteGroupQueryV1(RequestV1):
    """Parameters of deleting a group."""

    forfeit: _Switch = Field("false", description="`true`: also where credit is left in a balance. It is lost then.")


async def _post(request: ApiRequest) -> Encoded:
    body = request.body_as(CreateGatewayGroupRequestV1)
    hierarchy = body.hierarchy or GroupHierarchyRequestV1()
    mode = hierarchy.limit_enforcement
    new = NewGroup(
        body.metadata.external_entity_id,
        body.metadata.name,
        await _group_models(request.workspace_id, body.models),
        Enforcement(mode) if mode else None,
        hierarchy.parent_group_id,
        body.owner_change(),
        tuple(body.alert_percents or ()),
        spend_limits_of(body.spend_limits or ()),
    )
    is_trial = request.query_as(WriteGroupQueryV1).dry_run == "true"
    created = await groups.create_group(request.store, request.workspace_id, new, is_trial=is_trial)
    return await (_answer if is_trial else _tagged)(created)


async def _patch(request: ApiRequest) -> Encoded:
    body = request.body_as(UpdateGatewayGroupRequestV1)
    models = None if body.models is None else await _group_models(request.workspace_id, body.models)
    name = body.metadata.name if body.metadata else None
    percents = None if body.alert_percents is None else tuple(body.alert_percents)
    spend_limits = None if body.spend_limits is None else spend_limits_of(body.spend_limits)
    change = GroupChange(models, body.metadata is not None, name, body.owner_change(), percents, spend_limits)
    parts = request.dependencies
    group_id = request.path["group_id"]
    if request.query_as(WriteGroupQueryV1).dry_run == "true":
        return await _answer(await groups.try_change(request.store, request.workspace_id, group_id, change))
    changed = await groups.change_group(request.store, parts.counters, request.workspace_id, group_id, change)
    parts.alerts.note([(request.workspace_id, group_id)])
    return await _tagged(changed)


async def _get(request: ApiRequest) -> Encoded:
    return await _tagged(await groups.read_group(request.store, request.workspace_id, request.path["group_id"]))


async def _group_models(workspace_id: str, entries: Sequence[GroupModelRequestV1]) -> tuple[SlugLimits, ...]:
    return await beside(workspace_id, len(entries), lambda: tuple(map(_slug_limits, entries)))


async def _tagged(group: GroupInTree) -> Encoded:
    return tagged(await _answer(group), group.tag)


async def _answer(group: GroupInTree) -> Encoded:
    return Encoded(await beside(group.record.group.workspace_id, _entries(group.path), partial(encode_group, group)))


@dataclass(frozen=True, slots=True)
class _Listed:
    """A group with the members that its list was asked for. `usage`: None if it was not. `ends`: of usage limits."""

    group: GroupInTree
    shows_effective: bool
    usage: Sequence[LimitUse] | None
    ends: Mapping[Unit, str]
    shows_month: bool
    month: GroupMonth | None


async def _list(request: ApiRequest) -> Encoded:
    top_id = request.query_as(GroupsQueryV1).top_group_id
    if top_id is not None:
        await groups.read_group(request.store, request.workspace_id, top_id)

    async def fetch(at: Position[_Listed]) -> Sequence[_Listed]:
        # A cursor of the last release has no filter but the first.
        selection = GroupFilter(at.filters["external_entity_id"], at.filters.get("top_group_id"))
        page = await groups.read_groups(request.store, request.workspace_id, selection, at.after, at.limit)
        usages: Sequence[Sequence[LimitUse] | None] = [None] * len(page)
        ends: Mapping[Unit, str] = {}
        if at.filters.get("usage") == "true":
            counters = request.dependencies.counters
            ends = await window_ends(counters)
            usages = await read_usage(counters, [one.path for one in page])
        months: Mapping[str, GroupMonth] = {}
        shows_month = at.filters.get("month") == "true"
        if shows_month:
            paths = [one.record.path for one in page]
            months = await month_of_groups(request.dependencies.usage_reports, request.workspace_id, paths)
        shows_effective = at.filters.get("effective_models") != "false"
        return [
            _Listed(one, shows_effective, usage, ends, shows_month, months.get(one.record.path))
            for one, usage in zip(page, usages, strict=True)
        ]

    filters = ("external_entity_id", "top_group_id", "effective_models", "usage", "month")
    listing = Listing("groups", fetch, lambda one: one.group.record.group.id, _encode_listed, filters, 4, _weight)
    return await list_page(request, listing)


def _encode_listed(listed: _Listed) -> Pieces:
    path = listed.group.path if listed.shows_effective else ()
    more: dict[str, Any] = {}
    if listed.usage is not None:
        more["usage"] = Array([(orjson.dumps(shown_usage(entry, listed.ends)),) for entry in listed.usage])
    if listed.month is not None:
        more["month"] = {**shown_totals(listed.month.whole), "own": shown_totals(listed.month.own)}
    elif listed.shows_month:
        more["month"] = None
    return _encode(listed.group, path, more)


def _weight(listed: _Listed) -> int:
    return _entries(listed.group.path) + len(listed.usage or ())


def _entries(path: Sequence[Group]) -> int:
    """The number of entries of `models` on the path."""
    return sum(len(group.models) for group in path)


async def _delete(request: ApiRequest) -> DeletedGatewayGroupV1:
    parts = request.dependencies
    workspace_id = request.workspace_id
    forfeit = request.query_as(DeleteGroupQueryV1).forfeit == "true"
    if forfeit:
        check_permission(request.caller, Permission.CREDITS)
    group_id = request.path["group_id"]
    removed = await groups.remove_group(parts.store, parts.counters, workspace_id, group_id, forfeit=forfeit)
    record = removed.record
    return DeletedGatewayGroupV1(
        id=record.group.id,
        parent_group_id=record.group.parent_id,
        metadata=_metadata(record),
        deleted_at=time_text(removed.removed_at_ms),
    )


def encode_group(group: GroupInTree) -> Pieces:
    """A `GatewayGroupV1`."""
    return _encode(group, group.path, {})


def _encode(group: GroupInTree, path: Sequence[Group], more: Mapping[str, Any]) -> Pieces:
    """Encode a group. An empty path: no `effective_models`."""
    record = group.record
    bounds = bounds_of_each(path) if path else ()
    lists = {
        "models": Array([(orjson.dumps(models_entry_to_wire(entry)),) for entry in record.group.models]),
        "effective_models": Array(map(_effective, bounds)),
    }
    effective = {"effective_spend_limits": shown_effective(group.spend_plan)}
    return encode_object({**shown_group(record), **effective, **lists, **more})


def _metadata(record: GroupRecord) -> GroupMetadataV1:
    return GroupMetadataV1(external_entity_id=record.group.external_entity_id, name=record.name)


def _effective(entry: tuple[str, Sequence[Bound]]) -> Pieces:
    """An `EffectiveModelV1`."""
    slug, bounds = entry
    rates = [_effective_limit(bound) for bound in bounds if bound.limit.is_rate]
    usages = [_effective_limit(bound) for bound in bounds if not bound.limit.is_rate]
    return (orjson.dumps({"slug": slug, "rate_limits": rates, "usage_limits": usages}),)


def _effective_limit(bound: Bound) -> dict[str, Any]:
    """An `EffectiveLimitV1`."""
    limit = bound.limit
    source = bound.source_group
    return {"type": limit.type, "unit": limit.unit, "threshold": limit.threshold, "source_group": source}


def _slug_limits(entry: GroupModelRequestV1) -> SlugLimits:
    return SlugLimits(
        entry.slug, tuple(map(_limit, entry.rate_limits or ())), tuple(map(_limit, entry.usage_limits or ()))
    )


def _limit(fields: RateLimitV1 | UsageLimitV1) -> Limit:
    return limit_of(fields.type, fields.unit, fields.threshold)


_PATH = "/v1/gateway/groups"
_ONE = f"{_PATH}/{{group_id}}"
_CREATE = CreateGatewayGroupRequestV1
_UPDATE = UpdateGatewayGroupRequestV1
OPERATIONS = (
    Operation(
        *("POST", _PATH, _post, "Create a group", GatewayGroupV1, _CREATE, WriteGroupQueryV1, (400, 404, 409)),
        needs=Permission.POLICY,
        is_tagged=True,
        creates=True,
    ),
    Operation(
        *("GET", _PATH, _list, "List groups", GatewayGroupsResponseV1),
        query=GroupsQueryV1,
        errors=(400, 404),
        needs=Permission.READ,
    ),
    Operation(
        *("GET", _ONE, _get, "Get a group", GatewayGroupV1), errors=(404,), needs=Permission.READ, is_tagged=True
    ),
    Operation(
        *("PATCH", _ONE, _patch, "Change a group", GatewayGroupV1, _UPDATE, WriteGroupQueryV1, (400, 404, 409)),
        needs=Permission.POLICY,
        is_tagged=True,
    ),
    Operation(
        *("DELETE", _ONE, _delete, "Delete a group and all below it", DeletedGatewayGroupV1),
        query=DeleteGroupQueryV1,
        errors=(400, 404, 409),
        needs=Permission.POLICY,
        is_tagged=True,
    ),
)
