"""`GET /v1/gateway/api_keys`: the keys of all groups and the workspace's own, newest first.

See docs/reference/management-api.md#all-keys.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from control.api.billing.usage_totals import UsageTotalsV1, optional, shown_totals
from control.api.federated_keys.settings import KeySettingsV1
from control.api.protocol.encoding import Encoded
from control.api.protocol.lists import Listing, Position, encoder, list_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import NO_NUL, PageQueryV1, PaginationResponseV1, ResponseV1, RoleName, TimeText
from control.records.console import KeyFilter, ListedKey, NamedGroup
from control.records.times import optional_time_text, time_text
from control.resources.billing.month_usage import month_of_keys
from control.resources.billing.report_groups import Totals
from control.resources.changes.shown import shown_key_settings
from control.resources.find.search import read_all_keys
from policy.credentials import KeyKind
from policy.keys.permissions import Permission

KeyTypeName = Literal["FEDERATED", "WORKSPACE_MANAGE_ALL", "WORKSPACE_INVOKE", "WORKSPACE_EXPORT_METRICS"]
_Text = Annotated[str, Field(min_length=1, max_length=255, json_schema_extra=NO_NUL)]


class AllKeysQueryV1(PageQueryV1):
    """Selects keys. With `cursor`, the other parameters are ignored."""

    q: _Text | None = Field(None, description="A part of the name; or of the prefix its beginning, from `tg_` on.")
    type: KeyTypeName | None = Field(None, description="`FEDERATED`: keys of groups.")
    external_entity_id: _Text | None = Field(None, description="Only keys of the group with this external id.")
    month: Literal["true", "false"] = Field(
        "false", description="`true`: keys of groups have `month`, their usage of the present UTC month."
    )


class KeyGroupV1(ResponseV1):
    """A group, without its limits."""

    id: str
    external_entity_id: str
    name: str | None


class ListedKeyV1(KeySettingsV1):
    """A key, identified by its public prefix. `group`: null for a key of the workspace itself."""

    prefix: str
    name: str | None
    type: KeyTypeName
    role: RoleName | None = Field(description="Of a workspace key; null: what its type may do.")
    group: KeyGroupV1 | None
    created_at: TimeText
    last_used_at: TimeText | None
    month: UsageTotalsV1 | None = optional("With `month=true`: the usage of a group's key in the present UTC month.")


class AllKeysResponseV1(ResponseV1):
    """One page of all keys of a workspace."""

    items: list[ListedKeyV1]
    pagination: PaginationResponseV1


_Shown = tuple[ListedKey, Totals | None]


async def _list(request: ApiRequest) -> Encoded:
    async def fetch(at: Position[_Shown]) -> Sequence[_Shown]:
        kind = at.filters["type"]
        selection = KeyFilter(at.filters["q"], kind and KeyKind(kind), at.filters["external_entity_id"])
        after = tuple(at.after) if at.after else None
        keys = await read_all_keys(request.store, request.workspace_id, selection, after, at.limit)
        months: Mapping[tuple[str, str], Totals] | None = None
        if at.filters["month"] == "true":
            entities = {key.group.external_entity_id for key in keys if key.group is not None}
            months = await month_of_keys(request.dependencies.usage_reports, request.workspace_id, entities)
        return [(key, _month(key, months)) for key in keys]

    def position(item: _Shown) -> list[int | str]:
        return [item[0].record.created_at_ms, item[0].record.prefix]

    filters = ("q", "type", "external_entity_id", "month")
    return await list_page(request, Listing("all keys", fetch, position, encoder(_listed), filters))


def _month(key: ListedKey, months: Mapping[tuple[str, str], Totals] | None) -> Totals | None:
    """None for a workspace key, which calls no slugs."""
    if months is None or key.group is None:
        return None
    return months.get((key.group.external_entity_id, key.record.prefix), Totals())


def _listed(item: _Shown) -> ListedKeyV1:
    key, month = item
    return ListedKeyV1(
        **members_of_key(key) | {"role": key.record.role},
        **shown_key_settings(key.record),
        created_at=time_text(key.record.created_at_ms),
        last_used_at=optional_time_text(key.record.last_used_at_ms),
        month=None if month is None else UsageTotalsV1(**shown_totals(month)),
    )


def members_of_key(key: ListedKey) -> dict[str, Any]:
    """The members that say which key it is."""
    group = None if key.group is None else shown_group_of_key(key.group)
    return {"prefix": key.record.prefix, "name": key.record.name, "type": key.record.kind, "group": group}


def shown_group_of_key(group: NamedGroup) -> KeyGroupV1:
    return KeyGroupV1(id=group.id, external_entity_id=group.external_entity_id, name=group.name)


OPERATIONS = (
    Operation(
        *("GET", "/v1/gateway/api_keys", _list, "List all keys", AllKeysResponseV1),
        query=AllKeysQueryV1,
        errors=(400,),
        needs=Permission.READ,
    ),
)
