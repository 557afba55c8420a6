"""`GET /v1/gateway/events`: billing events, oldest first, each in exactly one window.

See docs/reference/events-and-webhooks.md#listing-events.
"""

import json
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from pydantic import ConfigDict, Field

from control.api.protocol.encoding import Encoded, Pieces
from control.api.protocol.lists import encoded_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import CURSOR, PageQueryV1, PaginationResponseV1, ResponseV1, TimeText
from control.api.protocol.times import TimeParameter, next_ms
from control.errors import InvalidFieldError
from control.long_work import beside
from control.records.events import EventWindow, ShownEvent
from control.records.times import time_text
from control.resources.billing.event_costs import EventCosts, shown_details
from control.resources.billing_events import EventPage
from policy.billing import public_event
from policy.keys.permissions import Permission

_CURSOR_KIND = "events"
_DETAILS = "details"
_NO_END_MS = 1 << 62
MAX_FILTER_BYTES = 40_000
"""The most bytes of all filters: a cursor carries them and must fit into a request line (`control/app.py: LIMITS`)."""


_Values = Annotated[list[Annotated[str, Field(max_length=255)]], Field(max_length=1000)]


class EventsQueryV1(PageQueryV1):
    """Selects events. With `cursor`, which carries window, page size and filters, the other parameters are ignored."""

    cursor: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=60_000, description=CURSOR)] = None
    start_time: TimeParameter | None = Field(None, description="Inclusive start. Required unless `cursor` is given.")
    end_time: TimeParameter | None = Field(
        None, description="Exclusive end. Reduced to now minus the ingestion holdback if later."
    )
    api_keys: _Values = Field([], description="Prefix of an API key; repeat for several. Omitted: all keys.")
    external_entity_ids: _Values = Field(
        [], description="External id of a group; repeat for several. Omitted: all groups."
    )
    include: Literal["details"] | None = Field(
        None, description="`details`: each event has `details` and `cost`, what else the call cost and the amount."
    )


class GatewayEventTokensV1(ResponseV1):
    """The tokens of the call. `inputTokens` counts cached and uncached input."""

    inputTokens: int
    outputTokens: int
    cachedInputTokens: int


class GatewayEventDetailsV1(ResponseV1):
    """Further figures of the call: 0 or null where they are unknown.

    Cache writes, sound and pictures of the input are parts of `inputTokens`; reasoning, sound and pictures of the
    output are parts of `outputTokens`.
    """

    status: int | None = Field(description="The status of the answer.")
    cacheWriteTokens: int = Field(description="All input that was written to a cache.")
    cacheWrite1hTokens: int = Field(description="Of these, what was written for an hour.")
    reasoningTokens: int
    audioInputTokens: int
    audioOutputTokens: int
    imageInputTokens: int
    imageOutputTokens: int
    serverToolCalls: int
    serviceTier: str | None = Field(description="As the provider reported it.")
    source: Literal["REPORTED", "COUNTED"] | None = Field(
        description="`COUNTED` if any figure was counted by Tollgate, because the provider did not report it."
    )


class GatewayEventCostV1(ResponseV1):
    """The cost of the call, by the price that is valid at its timestamp: exact decimal text."""

    amount: str
    currency: str


class GatewayEventV1(ResponseV1):
    """One call through a slug, billed once. `idempotencyKey` identifies it."""

    model_config = ConfigDict(populate_by_name=True)

    type: Literal["API_BILLING_USAGE"]
    idempotencyKey: str
    timestamp: TimeText
    requestId: str
    modelSlug: str
    externalEntityId: str
    apiKeyPrefix: str
    tokens: GatewayEventTokensV1
    details: GatewayEventDetailsV1 | None = Field(
        None, exclude_if=lambda value: value is None, description="Present only with `include=details`."
    )
    cost: GatewayEventCostV1 | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Present only with `include=details`, and null if the slug had no price at that time.",
    )


class EventsWindowV1(ResponseV1):
    """The window answered: all events from `start_time` (inclusive) to `end_time` (exclusive). It is final.

    Events have whole-millisecond timestamps, so both times are rounded up to the millisecond.
    """

    start_time: TimeText
    end_time: TimeText


class GatewayEventsResponseV1(ResponseV1):
    """A page of events, ordered by `timestamp`, then by `idempotencyKey`."""

    items: list[GatewayEventV1]
    pagination: PaginationResponseV1
    window: EventsWindowV1


async def _list(request: ApiRequest) -> Encoded:
    query = request.query_as(EventsQueryV1)
    parts = request.dependencies
    workspace_id = request.workspace_id
    if query.cursor is not None:
        pinned = parts.cursors.open(workspace_id, _CURSOR_KIND, query.cursor)
        start_ms, end_ms, keys, entities = pinned["window"]
        with_details = pinned.get("include") == _DETAILS
        window = EventWindow(workspace_id, start_ms, end_ms, tuple(keys), tuple(entities), with_details)
        page = await parts.events.next_page(window, tuple(pinned["after"]), pinned["limit"])
    else:
        page = await parts.events.first_page(_window_of(workspace_id, query), query.limit)
    answered = EventsWindowV1(start_time=time_text(page.window.start_ms), end_time=time_text(page.window.end_ms))
    items = await beside(workspace_id, len(page.rows), partial(_encoded, page))
    return encoded_page(items, _pagination(request, page), window=answered)


def _encoded(page: EventPage) -> list[Pieces]:
    return [(orjson.dumps(_shown(row, page.costs)),) for row in page.rows]


def _shown(row: ShownEvent, costs: EventCosts | None) -> dict[str, Any]:
    event = public_event(row, time_text(row.timestamp_ms))
    return event if costs is None else event | {"details": shown_details(row), "cost": costs.of(row)}


def _window_of(workspace_id: str, query: EventsQueryV1) -> EventWindow:
    if query.start_time is None:
        raise InvalidFieldError("start_time", "required unless cursor is given")
    if query.end_time is not None and query.end_time <= query.start_time:
        raise InvalidFieldError("end_time", "must be after start_time")
    if len(json.dumps((query.api_keys, query.external_entity_ids))) > MAX_FILTER_BYTES:
        raise InvalidFieldError("external_entity_ids", f"all filters together have at most {MAX_FILTER_BYTES} bytes")
    end_ms = _NO_END_MS if query.end_time is None else next_ms(query.end_time)
    filters = (tuple(query.api_keys), tuple(query.external_entity_ids))
    return EventWindow(workspace_id, next_ms(query.start_time), end_ms, *filters, query.include == _DETAILS)


def _pagination(request: ApiRequest, page: EventPage) -> PaginationResponseV1:
    if page.next is None:
        return PaginationResponseV1(has_more=False)
    window = page.window
    pinned = {
        "window": [window.start_ms, window.end_ms, window.api_keys, window.external_entity_ids],
        "after": page.next,
        "limit": page.limit,
        **({"include": _DETAILS} if window.with_details else {}),
    }
    cursor = request.dependencies.cursors.sign(window.workspace_id, _CURSOR_KIND, pinned)
    return PaginationResponseV1(has_more=True, cursor=cursor)


OPERATIONS = (
    Operation(
        *("GET", "/v1/gateway/events", _list, "List billing events", GatewayEventsResponseV1),
        query=EventsQueryV1,
        needs=Permission.READ,
    ),
)
