"""`GET /v1/gateway/requests`: single calls, newest first, refusals and failures too; never content.

See docs/reference/management-api.md#requests.
"""

from functools import partial
from typing import Annotated, Any

import orjson
from pydantic import Field

from control.api.events import GatewayEventCostV1, GatewayEventTokensV1
from control.api.protocol.encoding import Encoded, Pieces
from control.api.protocol.lists import encoded_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import NO_NUL, PageQueryV1, PaginationResponseV1, ResponseV1, TimeText
from control.api.protocol.times import TimeParameter, next_ms
from control.errors import InvalidFieldError
from control.long_work import beside
from control.records.times import time_text
from control.records.traffic import RequestFilter
from control.resources.traffic.requests import RequestPage, read_requests
from policy.keys.permissions import Permission
from policy.spend.key_names import key_of_name
from policy.traffic import ListedRequest

_CURSOR_KIND = "requests"
_Text = Annotated[str, Field(min_length=1, max_length=257, json_schema_extra=NO_NUL)]


class RequestsQueryV1(PageQueryV1):
    """Selects requests. With `cursor`, which carries window, page size and filters, the others are ignored."""

    request_id: _Text | None = Field(None, description="The id that the answer had as `x-request-id`.")
    external_entity_id: _Text | None = Field(None, description="External id of the calling group.")
    api_key_prefix: _Text | None = Field(None, description="Prefix of the API key.")
    slug: _Text | None = Field(None, description="The slug; of a direct call the model's id.")
    status: Annotated[
        str | None,
        Field(pattern=r"^[1-5]([0-9]{2}|xx)$", description="A status, or a class of them.", examples=["429", "4xx"]),
    ] = None
    start_time: TimeParameter | None = Field(None, description="Inclusive start. Omitted: from the oldest on.")
    end_time: TimeParameter | None = Field(None, description="Exclusive end. Omitted: to the newest.")


class RequestLimitV1(ResponseV1):
    """The limit that refused the call."""

    group_id: str | None = Field(
        description="The group that configures it; null of a limit of the workspace's own, or of the key's."
    )
    api_key_prefix: str | None = Field(
        description="Of a limit of the key's own: that key, or the first of its rotation. Null of all others."
    )
    type: str = Field(description="Of a spend limit `SPEND`, of a prepaid balance `BALANCE`.", examples=["REQUEST"])
    unit: str | None = Field(description="Null of a balance.", examples=["MINUTE"])
    threshold: int | str | None = Field(
        description="Of a spend limit the amount, as decimal text. Null of a balance.", examples=[100]
    )


class ListedRequestV1(ResponseV1):
    """A call that has ended. What is unknown is null."""

    request_id: str
    timestamp: TimeText = Field(description="When it ended.")
    external_entity_id: str | None
    api_key_prefix: str
    slug: str | None
    path: str = Field(description="Without the query, at most 256 characters.")
    status: int = Field(description="What the caller got, or would have got: 499 when it left.")
    error_code: str | None = Field(description="Null of errors that the upstream sent.", examples=["RATE_LIMITED"])
    limit: RequestLimitV1 | None = Field(description="Null unless a limit has refused the call.")
    time_to_first_byte_ms: float | None
    duration_ms: float
    tokens: GatewayEventTokensV1 | None = Field(description="Those of the billing event.")
    cost: GatewayEventCostV1 | None = Field(description="That of the billing event; null if it has no price.")
    event_key: str | None = Field(description="`idempotencyKey` of the billing event; null until it is committed.")
    weight: int = Field(description="The number of calls that this one stands for.")


class RequestsResponseV1(ResponseV1):
    """One page of requests, newest first."""

    items: list[ListedRequestV1]
    pagination: PaginationResponseV1
    sampled: bool = Field(description="Whether an item of this page stands for several calls.")


async def _list(request: ApiRequest) -> Encoded:
    query = request.query_as(RequestsQueryV1)
    cursors = request.dependencies.cursors
    workspace_id = request.workspace_id
    if query.cursor is None:
        before = None
        filters = _filters_of(query)
        limit = query.limit
    else:
        pinned = cursors.open(workspace_id, _CURSOR_KIND, query.cursor)
        before = (pinned["before"][0], pinned["before"][1])
        filters = pinned["filters"]
        limit = pinned["limit"]
    statuses = filters["statuses"]
    selection = RequestFilter(workspace_id, **{**filters, "statuses": None if statuses is None else tuple(statuses)})
    page = await read_requests(request.store, selection, before, limit)
    items = await beside(workspace_id, len(page.rows), partial(_encoded, page))
    pagination = PaginationResponseV1(has_more=False)
    if page.next is not None:
        pinned = {"before": page.next, "filters": filters, "limit": limit}
        pagination = PaginationResponseV1(has_more=True, cursor=cursors.sign(workspace_id, _CURSOR_KIND, pinned))
    return encoded_page(items, pagination, sampled=any(row.weight > 1 for row in page.rows))


def _filters_of(query: RequestsQueryV1) -> dict[str, Any]:
    if query.start_time is not None and query.end_time is not None and query.end_time < query.start_time:
        raise InvalidFieldError("end_time", "end_time is before start_time")
    return {
        **{name: getattr(query, name) for name in ("request_id", "external_entity_id", "api_key_prefix", "slug")},
        "statuses": None if query.status is None else _statuses(query.status),
        "start_ms": None if query.start_time is None else next_ms(query.start_time),
        "end_ms": None if query.end_time is None else next_ms(query.end_time),
    }


def _statuses(text: str) -> tuple[int, int]:
    """The least and the greatest status that the text stands for."""
    return int(text.replace("xx", "00")), int(text.replace("xx", "99"))


def _encoded(page: RequestPage) -> list[Pieces]:
    return [(orjson.dumps(shown_request(page, row)),) for row in page.rows]


def shown_request(page: RequestPage, row: ListedRequest) -> dict[str, Any]:
    """The members of a `ListedRequestV1`."""
    event = page.events.get(row.event_key)
    tokens = event and {
        "inputTokens": event.input_tokens,
        "outputTokens": event.output_tokens,
        "cachedInputTokens": event.cached_input_tokens,
    }
    return {
        "request_id": row.request_id,
        "timestamp": time_text(row.timestamp_ms),
        "external_entity_id": row.external_entity_id or None,
        "api_key_prefix": row.api_key_prefix,
        "slug": row.slug or None,
        "path": row.path,
        "status": row.status,
        "error_code": row.error_code or None,
        "limit": _limit(row) if row.limit_type else None,
        "time_to_first_byte_ms": None if row.first_byte_us is None else row.first_byte_us / 1000,
        "duration_ms": row.duration_us / 1000,
        "tokens": tokens,
        "cost": event and page.costs.of(event),
        "event_key": event and row.event_key,
        "weight": row.weight,
    }


def _limit(row: ListedRequest) -> dict[str, Any]:
    threshold = row.limit_threshold
    key_prefix = key_of_name(row.limit_group_id)
    return {
        "group_id": None if key_prefix else row.limit_group_id or None,
        "api_key_prefix": key_prefix,
        "type": row.limit_type,
        "unit": row.limit_unit or None,
        # Amounts of money have a point; a count is a number.
        "threshold": int(threshold) if threshold.isdecimal() and row.limit_type != "SPEND" else threshold or None,
    }


OPERATIONS = (
    Operation(
        *("GET", "/v1/gateway/requests", _list, "List requests", RequestsResponseV1),
        query=RequestsQueryV1,
        errors=(400,),
        needs=Permission.READ,
    ),
)
