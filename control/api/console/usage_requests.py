"""`…/requests` of a usage page: why calls of the group were refused or failed, and any call by its request id.

See docs/reference/console.md#refused-calls.
"""

from functools import partial
from typing import Annotated, Any

import orjson
from aiohttp import web
from pydantic import Field

from control.api.console.usage_views import NOT_STORED, UsageView, usage_routes
from control.api.protocol.bodies import read_query
from control.api.protocol.dependencies import DEPENDENCIES
from control.api.protocol.schemas import NO_NUL, PageQueryV1
from control.api.traffic.requests import shown_request
from control.errors import InvalidFieldError
from control.long_work import beside
from control.resources.console.usage_requests import CallSearch, CustomerCall, CustomerCalls, read_customer_calls

_CURSOR_KIND = "customer requests"
_MEMBERS = (
    *("request_id", "timestamp", "slug", "path", "status", "error_code"),
    *("time_to_first_byte_ms", "duration_ms", "tokens", "weight"),
)
"""The members of a listed request that tell of no other group."""


class CustomerRequestsQueryV1(PageQueryV1):
    """Selects calls: without `request_id`, those that were refused or failed."""

    request_id: Annotated[str | None, Field(min_length=1, max_length=128, json_schema_extra=NO_NUL)] = None


async def _requests(request: web.Request, view: UsageView) -> web.Response:
    query = read_query(request, CustomerRequestsQueryV1)
    assert isinstance(query, CustomerRequestsQueryV1)
    dependencies = request.app[DEPENDENCIES]
    cursors = dependencies.cursors
    search = CallSearch(query.request_id, None, query.limit)
    if query.cursor is not None:
        group_id, request_id, before, limit = cursors.open(view.workspace_id, _CURSOR_KIND, query.cursor)["search"]
        if group_id != view.group.id:
            raise InvalidFieldError("cursor", "of another group's page")
        search = CallSearch(request_id, (before[0], before[1]), limit)
    calls = await read_customer_calls(dependencies.store, view.workspace_id, view.group, search)
    cursor = None
    if calls.page.next is not None:
        pinned = {"search": [view.group.id, search.request_id, calls.page.next, search.limit]}
        cursor = cursors.sign(view.workspace_id, _CURSOR_KIND, pinned)
    make = partial(_encoded, calls, cursor, dependencies.settings.portal_cost)
    body = await beside(view.workspace_id, len(calls.calls), make)
    return web.Response(body=body, content_type="application/json", charset="utf-8", headers=NOT_STORED)


def _encoded(calls: CustomerCalls, cursor: str | None, has_cost: bool) -> bytes:
    items = [_shown(calls, call, has_cost) for call in calls.calls]
    pagination = {"has_more": cursor is not None, "cursor": cursor}
    return orjson.dumps({"items": items, "pagination": pagination, "sampled": any(one["weight"] > 1 for one in items)})


def _shown(calls: CustomerCalls, call: CustomerCall, has_cost: bool) -> dict[str, Any]:
    """The call without other groups: of their limits what the page shows of them."""
    members = shown_request(calls.page, call.row)
    item = {name: members[name] for name in _MEMBERS}
    item["own"] = call.is_own
    item["api_key_prefix"] = members["api_key_prefix"] if call.is_own else None
    limit = members["limit"]
    if limit is not None:
        is_money = limit["type"] in ("SPEND", "BALANCE")
        has_threshold = call.limit_is_shown and (has_cost or not is_money)
        limit = {
            "type": limit["type"],
            "unit": limit["unit"],
            "threshold": limit["threshold"] if has_threshold else None,
            "own": call.limit_is_own,
        }
    return item | {"limit": limit} | ({"cost": members["cost"]} if has_cost else {})


ROUTES = usage_routes("requests", _requests)
