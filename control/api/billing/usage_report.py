"""`GET /v1/gateway/usage_report`: sums of calls, tokens and money, by day, slug, entity or key.

See docs/reference/usage-reports.md#the-report.
"""

from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any, Literal

import orjson
from pydantic import Field

from control.api.billing.prices import CurrencyText, PriceV1, price_response
from control.api.billing.usage_totals import (
    FIGURES,
    OrderSum,
    UsageSumsV1,
    UsageTotalsV1,
    optional,
    shown_sums,
    shown_totals,
)
from control.api.events import EventsWindowV1
from control.api.protocol.encoding import Array, Encoded, Pieces, encode_object
from control.api.protocol.lists import PAGE_BYTES, encoded_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import PageQueryV1, PaginationResponseV1, ResponseV1
from control.api.protocol.times import TimeParameter, next_ms
from control.errors import InvalidFieldError
from control.records.events import EventWindow
from control.records.times import time_text
from control.resources.billing.report_groups import Grouping, ReportGroup, ReportLine
from control.resources.billing.report_query import COST, ReportOrder, ReportQuery
from control.resources.billing.usage_report import PageRoom, ReportPage
from policy.keys.permissions import Permission
from policy.prices import Price, amount_text

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
    rollup: Literal["true", "false"] | None = Field(
        None,
        description="Whether sums include the calls of all groups below. Items then have `own`, and an entity stands"
        " for a group. Groupings other than `entity` need `external_entity_id`; there is none by `key`.",
    )
    order_by: OrderSum | None = Field(
        None,
        description="The sum by which items are ordered, ties by name. By default they are in the order of names.",
    )
    order: Literal["asc", "desc"] | None = Field(None, description="With `order_by`; by default `desc`.")
    currency: CurrencyText | None = Field(
        None, description="With `order_by=cost`: the currency. Required if the window has costs in several."
    )


class UsageReportLineV1(UsageSumsV1):
    """The calls of an item through one slug at one price. `price` and `amount` are null where there was no price.

    Those of a service tier that the price lists, and those with long context, have lines of their own.
    """

    slug: str
    price: PriceV1 | None
    service_tier: str | None = optional("The service tier whose multiplier the tokens have.")
    long_context: bool | None = optional("True if the tokens have the price's prices of long context.")
    amount: str | None = Field(description="Exact decimal text, in the price's currency.")


class UsageReportItemV1(UsageTotalsV1):
    """One group of calls. It has the members of its grouping: `day`, `slug`, `external_entity_id`; of a key both last.

    With `rollup` an entity is a group, with its `group_id`.
    """

    day: str | None = optional("A UTC day.")
    slug: str | None = optional("A slug.")
    external_entity_id: str | None = optional("The external id of a group; left out if that is no longer known.")
    group_id: str | None = optional("With `rollup` and entities: the group.")
    api_key_prefix: str | None = optional("The prefix of a key.")
    own: UsageTotalsV1 | None = optional("With `rollup`: the part of the sums that is the group's own.")
    lines: list[UsageReportLineV1] | None = optional("With `lines`: the calls by slug and price.")


class UsageReportResponseV1(ResponseV1):
    """A page of a report, in the order of its names or of a sum. The window is final."""

    items: list[UsageReportItemV1]
    pagination: PaginationResponseV1
    window: EventsWindowV1
    totals: UsageTotalsV1 | None = optional("The sums of all items, of all pages; on the first one alone.")


async def _get(request: ApiRequest) -> Encoded:
    query = request.query_as(UsageReportQueryV1)
    parts = request.dependencies
    if query.cursor is not None:
        pinned = parts.cursors.open(request.workspace_id, _CURSOR_KIND, query.cursor)
        report_query = _asked_before(request.workspace_id, pinned)
        limit = pinned["limit"]
        items = ReportItems(report_query, pinned["lines"])
        room = PageRoom(limit, items.add, items.shows_lines)
        page = await parts.usage_reports.next_page(report_query, tuple(pinned["after"]), room, pinned["prices"])
    else:
        report_query = _asked(request.workspace_id, query)
        limit = query.limit
        items = ReportItems(report_query, query.lines == "true")
        room = PageRoom(limit, items.add, items.shows_lines)
        page = await parts.usage_reports.first_page(report_query, room)
    window = page.query.window
    answered = EventsWindowV1(start_time=time_text(window.start_ms), end_time=time_text(window.end_ms))
    pagination = _pagination(request, page, {"limit": limit, "lines": items.shows_lines})
    totals = {} if page.totals is None else {"totals": UsageTotalsV1(**shown_totals(page.totals))}
    return encoded_page(items.encoded, pagination, window=answered, **totals)


class ReportItems:
    """The items of a page, encoded as they are found, until they fill it."""

    def __init__(self, query: ReportQuery, shows_lines: bool) -> None:
        self.encoded: list[Pieces] = []
        self.shows_lines = shows_lines
        self._names = _GROUP if query.rolls_up and query.by is Grouping.ENTITY else _NAMES[query.by]
        self._bytes = 0
        self._prices: dict[tuple[str, int], orjson.Fragment] = {}

    def add(self, group: ReportGroup) -> bool:
        """Encode the group, unless the page has items and would be too long with it."""
        members = _item(group, self._names).model_dump()
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
        return (orjson.dumps(shown_line(line, self._price)),)

    def _price(self, price: Price) -> orjson.Fragment:
        place = (price.slug, price.valid_from_ms)
        if place not in self._prices:
            self._prices[place] = orjson.Fragment(orjson.dumps(price_response(price).model_dump()))
        return self._prices[place]


def shown_line(line: ReportLine, show_price: Callable[[Price], Any]) -> dict[str, Any]:
    """The members of a line. `show_price`: makes its price."""
    priced = line.priced
    members = {
        **shown_sums(line.usage),
        "slug": priced.slug,
        "price": None if priced.price is None else show_price(priced.price),
        "amount": None if line.amount is None else amount_text(line.amount),
    }
    if priced.service_tier:
        members["service_tier"] = priced.service_tier
    if priced.is_long:
        members["long_context"] = True
    return members


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
    by = Grouping(query.group_by)
    rolls_up = query.rollup == "true"
    if rolls_up and by is Grouping.KEY:
        raise InvalidFieldError("group_by", "with rollup: day, slug or entity")
    if rolls_up and by is not Grouping.ENTITY and not entities:
        raise InvalidFieldError("external_entity_id", f"required with rollup and group_by={by}")
    return ReportQuery(window, by, query.model_slug, rolls_up, _order(query))


def _order(query: UsageReportQueryV1) -> ReportOrder | None:
    if query.order_by is None and query.order is not None:
        raise InvalidFieldError("order", "needs order_by")
    if query.order_by != COST and query.currency is not None:
        raise InvalidFieldError("currency", "needs order_by=cost")
    if query.order_by is None:
        return None
    return ReportOrder(FIGURES.get(query.order_by, query.order_by), query.order != "asc", query.currency or "")


def _asked_before(workspace_id: str, pinned: dict[str, Any]) -> ReportQuery:
    start_ms, end_ms, entities = pinned["window"]
    window = EventWindow(workspace_id, start_ms, end_ms, external_entity_ids=tuple(entities))
    order = ReportOrder(*pinned["order"]) if pinned.get("order") else None
    return ReportQuery(window, Grouping(pinned["by"]), pinned.get("slug"), pinned.get("rollup", False), order)


def _pagination(request: ApiRequest, page: ReportPage, options: dict[str, Any]) -> PaginationResponseV1:
    if page.after is None:
        return PaginationResponseV1(has_more=False)
    window = page.query.window
    pinned = {
        "window": [window.start_ms, window.end_ms, window.external_entity_ids],
        "by": page.query.by.value,
        "slug": page.query.slug,
        "rollup": page.query.rolls_up,
        "order": None if page.query.order is None else astuple(page.query.order),
        "after": page.after,
        "prices": page.price_list,
        **options,
    }
    cursor = request.dependencies.cursors.sign(window.workspace_id, _CURSOR_KIND, pinned)
    return PaginationResponseV1(has_more=True, cursor=cursor)


def _item(group: ReportGroup, member_names: Sequence[str]) -> UsageReportItemV1:
    names: dict[str, Any] = {name: text for name, text in zip(member_names, group.name, strict=True) if text}
    own = None if group.own is None else UsageTotalsV1(**shown_totals(group.own))
    return UsageReportItemV1(**names, **shown_totals(group.totals), own=own)


_NAMES = {
    Grouping.DAY: ("day",),
    Grouping.SLUG: ("slug",),
    Grouping.ENTITY: ("external_entity_id",),
    Grouping.KEY: ("external_entity_id", "api_key_prefix"),
}
_GROUP = ("external_entity_id", "group_id")


OPERATIONS = (
    Operation(
        *("GET", "/v1/gateway/usage_report", _get, "Report usage and costs", UsageReportResponseV1),
        query=UsageReportQueryV1,
        errors=(400, 409),
        needs=Permission.READ,
    ),
)
