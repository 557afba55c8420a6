"""The calls of a customer's own group: those that were refused or failed, and any that its request id names.

See docs/reference/console.md#refused-calls.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from control.edges.sql.console.caller_rows import CallingGroup, groups_of_entities, groups_of_keys
from control.edges.sql.store import Store
from control.records.console import NamedGroup
from control.records.traffic import RequestFilter, RequestPosition
from control.resources.groups import read_group
from control.resources.traffic.requests import RequestPage, read_requests
from policy.limits.groups import Enforcement
from policy.spend.key_names import key_of_name
from policy.traffic import ListedRequest

_REFUSED_OR_FAILED = (400, 999)
_DELETION_KNOWN_MS = 60_000
"""The time in which every proxy that reaches control has learned that a group was deleted."""


@dataclass(frozen=True, slots=True)
class CustomerCall:
    """A call of the group, or of one below it. `limit_is_own`: the limit that refused it counts the group's own calls.

    `limit_is_shown`: the page shows that limit, too.
    """

    row: ListedRequest
    is_own: bool
    limit_is_own: bool
    limit_is_shown: bool


@dataclass(frozen=True, slots=True)
class CustomerCalls:
    """Some of the calls, newest first. `page`: with their events and costs."""

    page: RequestPage
    calls: Sequence[CustomerCall]


@dataclass(frozen=True, slots=True)
class CallSearch:
    """The calls that are wanted: with a request id, also of groups below and of any status. `before`: of a page."""

    request_id: str | None
    before: RequestPosition | None
    limit: int


async def read_customer_calls(store: Store, workspace_id: str, group: NamedGroup, search: CallSearch) -> CustomerCalls:
    """Read a page. It may have fewer calls than asked for although more follow."""
    record = (await read_group(store, workspace_id, group.id)).record
    if search.request_id is None:
        selection = RequestFilter(
            workspace_id, external_entity_id=group.external_entity_id, statuses=_REFUSED_OR_FAILED
        )
    else:
        selection = RequestFilter(workspace_id, request_id=search.request_id)
    page = await read_requests(store, selection, search.before, search.limit)
    callers = await _callers_of(store, workspace_id, page.rows)
    is_independent = record.group.enforcement is Enforcement.INDEPENDENT
    calls: list[CustomerCall] = []
    for row in page.rows:
        caller = callers.of(row)
        if caller is None or not caller.path.startswith(record.path):
            continue
        is_own = caller.path == record.path
        counts_own = is_own and is_independent and row.limit_type != "BALANCE" and bool(row.limit_group_id)
        is_of_key = is_own and key_of_name(row.limit_group_id) is not None
        limit_is_own = row.limit_group_id == group.id or counts_own or is_of_key
        is_of_path = bool(row.limit_group_id) and f"/{row.limit_group_id}/" in f"/{record.path}"
        calls.append(CustomerCall(row, is_own, limit_is_own, is_of_path))
    return CustomerCalls(page, calls)


@dataclass(frozen=True, slots=True)
class _Callers:
    by_key: Mapping[str, CallingGroup]
    by_entity: Mapping[str, CallingGroup]

    def of(self, row: ListedRequest) -> CallingGroup | None:
        """The group that made the call, if there is no doubt: another one may have had its external id before."""
        if row.api_key_prefix in self.by_key:
            return self.by_key[row.api_key_prefix]
        namesake = self.by_entity.get(row.external_entity_id)
        began_ms = row.timestamp_ms - row.duration_us // 1000
        is_later = namesake is not None and began_ms >= namesake.created_at_ms + _DELETION_KNOWN_MS
        return namesake if is_later else None


async def _callers_of(store: Store, workspace_id: str, rows: Sequence[ListedRequest]) -> _Callers:
    async with store.read() as conn:
        by_key = await groups_of_keys(conn, workspace_id, {row.api_key_prefix for row in rows})
        unknown = {row.external_entity_id for row in rows if row.api_key_prefix not in by_key}
        return _Callers(by_key, await groups_of_entities(conn, workspace_id, unknown - {""}))
