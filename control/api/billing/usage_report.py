"""`GET /v1/gateway/usage_report`: sums of calls, tokens and money, by day, slug, entity or key.

See docs/reference/usage-reports.md#the-report.
"""

from typing import Any, Literal

import orjson
from pydantic import Field

from control.api.billing.prices import PriceV1, price_response
from control.api.events import EventsWindowV1
from control.api.protocol.encoding import Array, Encoded, Pieces, encode_object
from control.api.protocol.lists import PAGE_BYTES, encoded_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import PageQueryV1, PaginationResponseV1, ResponseV1
from control.api.protocol.times import TimeParameter, next_ms
from control.errors import InvalidFieldError
from control.records.events import EventWindow
from control.records.times import time_text
from control.records.usage_sums import PLAIN, Usage
from control.resources.billing.report_groups import Grouping, ReportGroup, ReportLine
from control.resources.billing.usage_report import PageRoom, ReportPage, ReportQuery
from policy.prices import Price, amount_text, money_texts

_CURSOR_KIND = "usage report"
_NO_END_MS = 1 << 62


class UsageReportQueryV1(PageQueryV1):
    """Selects events and how they are grouped. With `cursor`, the other parameters are ignored."""

    start: TimeParameter | None = Field(None, description="Inclusive start. Required unless `cursor` is given.")
    end: TimeParameter | None = Field(
        None, description="Exclusive end. Reduced to now minus the ingestion holdback if later."
    )
    group_by: Literal["day", "slug", "entity", "key"] | None = Field(
        None, description="Required unless `cursor` is given. Days are UTC days."
    )
    external_entity_id: str | None = Field(
        None, min_length=1, max_length=255, description="Only calls of the group with this external id."
    )
    model_slug: str | None = Field(None, min_length=1, max_length=257, description="Only calls of this slug.")
    lines: Literal["true", "false"] | None = Field(
        None, description="Whether each item shows its calls by slug and price. By default it does not."
    )


def _further(description: str) -> Any:
    return Field(None, description=description, exclude_if=lambda value: value is None)


class UsageSumsV1(ResponseV1):
    """Sums over calls. `input_tokens` counts all input, `output_tokens` all output.

    The members behind `cached_input_tokens` are left out where they are 0. Tokens of sound and pictures are those that
    are neither cached nor written to a cache.
    """

    calls: int
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int
    uncharged_calls: int | None = _further("Calls that do not cost `per_call`.")
    cache_write_tokens: int | None = _further("Input that was written to a cache.")
    cache_write_1h_tokens: int | None = _further("The part of it that was written for an hour.")
    reasoning_tokens: int | None = _further("A part of the output.")
    audio_input_tokens: int | None = _further("A part of the input.")
    image_input_tokens: int | None = _further("A part of the input.")
    audio_output_tokens: int | None = _further("A part of the output.")
    image_output_tokens: int | None = _further("A part of the output.")
    server_tool_calls: int | None = _further("Calls of tools that a vendor ran.")


class UsageReportLineV1(UsageSumsV1):
    """The calls of an item through one slug at one price. `price` and `amount` are null where there was no price.

    Those of a service tier that the price lists, and those with long context, have lines of their own.
    """

    slug: str
    price: PriceV1 | None
    service_tier: str | None = _further("The service tier whose multiplier the tokens have.")
    long_context: bool | None = _further("True if the tokens have the price's prices of long context.")
    amount: str | None = Field(description="Exact decimal text, in the price's currency.")


class UsageReportItemV1(UsageSumsV1):
    """One group of calls. It has the members of its grouping: `day`, `slug`, `external_entity_id`; of a key both last.

    `cost`: exact decimal text by currency, of the calls that have a price; null if none has one.
    """

    day: str | None = Field(None, exclude_if=lambda value: value is None)
    slug: str | None = Field(None, exclude_if=lambda value: value is None)
    external_entity_id: str | None = Field(None, exclude_if=lambda value: value is None)
    api_key_prefix: str | None = Field(None, exclude_if=lambda value: value is None)
    cost: dict[str, str] | None
    unpriced_calls: int
    lines: list[UsageReportLineV1] | None = Field(None, exclude_if=lambda value: value is None)


class UsageReportResponseV1(ResponseV1):
    """A page of a report, in the order of its grouping; keys by entity, then by prefix. The window is final."""

    items: list[UsageReportItemV1]
    pagination: PaginationResponseV1
    window: EventsWindowV1


async def _get(request: ApiRequest) -> Encoded:
    query = request.query_as(UsageReportQueryV1)
    parts = request.dependencies
    if query.cursor is not None:
        pinned = parts.cursors.open(request.workspace_id, _CURSOR_KIND, query.cursor)
        report_query = _asked_before(request.workspace_id, pinned)
        limit = pinned["limit"]
        items = ReportItems(report_query.by, pinned["lines"])
        room = PageRoom(limit, items.add)
        page = await parts.usage_reports.next_page(report_query, tuple(pinned["after"]), room, pinned["prices"])
    else:
        report_query = _asked(request.workspace_id, query)
        limit = query.limit
        items = ReportItems(report_query.by, query.lines == "true")
        page = await parts.usage_reports.first_page(report_query, PageRoom(limit, items.add))
    window = page.query.window
    answered = EventsWindowV1(start_time=time_text(window.start_ms), end_time=time_text(window.end_ms))
    pagination = _pagination(request, page, {"limit": limit, "lines": items.shows_lines})
    return encoded_page(items.encoded, pagination, window=answered)


class ReportItems:
    """The items of a page, encoded as they are found, until they fill it."""

    def __init__(self, by: Grouping, shows_lines: bool) -> None:
        self.encoded: list[Pieces] = []
        self.shows_lines = shows_lines
        self._by = by
        self._bytes = 0
        self._prices: dict[tuple[str, int], orjson.Fragment] = {}

    def add(self, group: ReportGroup) -> bool:
        """Encode the group, unless the page has items and would be too long with it."""
        members = _item(group, self._by).model_dump()
        if self.shows_lines:
            members["lines"] = Array(map(self._line, group.lines))
        item = encode_object(members)
        size = sum(map(len, item))
        if self.encoded and self._bytes + size > PAGE_BYTES:
            return False
        self.encoded.append(item)
        self._bytes += size
        return True

    def _line(self, line: ReportLine) -> Pieces:
        """A `UsageReportLineV1`. It is not made as such, and each price is encoded once: there may be thousands."""
        priced = line.priced
        members = {
            **_sums(line.usage),
            "slug": priced.slug,
            "price": None if priced.price is None else self._price(priced.price),
            "amount": None if line.amount is None else amount_text(line.amount),
        }
        if priced.service_tier:
            members["service_tier"] = priced.service_tier
        if priced.is_long:
            members["long_context"] = True
        return (orjson.dumps(members),)

    def _price(self, price: Price) -> orjson.Fragment:
        place = (price.slug, price.valid_from_ms)
        if place not in self._prices:
            self._prices[place] = orjson.Fragment(orjson.dumps(price_response(price).model_dump()))
        return self._prices[place]


def _asked(workspace_id: str, query: UsageReportQueryV1) -> ReportQuery:
    if query.start is None:
        raise InvalidFieldError("start", "required unless cursor is given")
    if query.group_by is None:
        raise InvalidFieldError("group_by", f"required unless cursor is given: one of {', '.join(Grouping)}")
    if query.end is not None and query.end <= query.start:
        raise InvalidFieldError("end", "must be after start")
    end_ms = _NO_END_MS if query.end is None else next_ms(query.end)
    entities = () if query.external_entity_id is None else (query.external_entity_id,)
    window = EventWindow(workspace_id, next_ms(query.start), end_ms, external_entity_ids=entities)
    return ReportQuery(window, Grouping(query.group_by), query.model_slug)


def _asked_before(workspace_id: str, pinned: dict[str, Any]) -> ReportQuery:
    start_ms, end_ms, entities = pinned["window"]
    window = EventWindow(workspace_id, start_ms, end_ms, external_entity_ids=tuple(entities))
    return ReportQuery(window, Grouping(pinned["by"]), pinned.get("slug"))


def _pagination(request: ApiRequest, page: ReportPage, options: dict[str, Any]) -> PaginationResponseV1:
    if page.after is None:
        return PaginationResponseV1(has_more=False)
    window = page.query.window
    pinned = {
        "window": [window.start_ms, window.end_ms, window.external_entity_ids],
        "by": page.query.by.value,
        "slug": page.query.slug,
        "after": page.after,
        "prices": page.price_list,
        **options,
    }
    cursor = request.dependencies.cursors.sign(window.workspace_id, _CURSOR_KIND, pinned)
    return PaginationResponseV1(has_more=True, cursor=cursor)


def _item(group: ReportGroup, by: Grouping) -> UsageReportItemV1:
    cost = group.cost
    names: dict[str, Any] = dict(zip(_NAMES[by], group.name, strict=True))
    return UsageReportItemV1(
        **names,
        **_sums(group.usage),
        cost=None if cost is None else money_texts(cost),
        unpriced_calls=group.unpriced_calls,
    )


_NAMES = {
    Grouping.DAY: ("day",),
    Grouping.SLUG: ("slug",),
    Grouping.ENTITY: ("external_entity_id",),
    Grouping.KEY: ("external_entity_id", "api_key_prefix"),
}


_MEMBERS = tuple(UsageSumsV1.model_fields)
"""The members of sums, in the order of `Usage`."""


def _sums(usage: Usage) -> dict[str, Any]:
    plain = dict(zip(_MEMBERS, usage[:PLAIN], strict=False))
    return plain | {name: figure for name, figure in zip(_MEMBERS[PLAIN:], usage[PLAIN:], strict=True) if figure}


OPERATIONS = (
    Operation(
        "GET",
        "/v1/gateway/usage_report",
        _get,
        "Report usage and costs",
        UsageReportResponseV1,
        query=UsageReportQueryV1,
        errors=(400, 409),
    ),
)
