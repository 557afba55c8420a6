"""Usage reports over the management API: all pages of one, and how a command prints them."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from commands.connection import Client
from commands.output import Column

PATH = "/v1/gateway/usage_report"
_PAGE_ITEMS = 1000
_NAMES = {
    "day": ("day",),
    "slug": ("slug",),
    "entity": ("external_entity_id",),
    "key": ("external_entity_id", "api_key_prefix"),
}
GROUPINGS = tuple(_NAMES)


async def read_report(client: Client, **query: Any) -> dict[str, Any]:
    """The report on one page: `items`, `pagination` and its final `window`."""
    items: list[Any] = []
    answer: dict[str, Any] = {}
    async for answer in report_pages(client, _PAGE_ITEMS, **query):
        items += answer["items"]
    return {**answer, "items": items}


async def report_pages(client: Client, limit: int, **query: Any) -> AsyncIterator[dict[str, Any]]:
    """Each page of the report. All have the same `window`."""
    answer = await client.call("GET", PATH, limit=limit, **query)
    yield answer
    while (cursor := answer["pagination"]["cursor"]) is not None:
        answer = await client.call("GET", PATH, cursor=cursor)
        yield answer


def columns_of(group_by: str) -> list[Column]:
    """The columns of a report's table."""
    names = [_column(name.removeprefix("external_").upper(), name) for name in _NAMES[group_by]]
    sums = ("calls", "input_tokens", "cached_input_tokens", "output_tokens")
    counts = [_column(name.removesuffix("_tokens").upper(), name) for name in sums]
    return [*names, *counts, Column("COST", _cost), _column("UNPRICED CALLS", "unpriced_calls")]


def csv_rows(group_by: str, items: list[dict[str, Any]]) -> list[list[Any]]:
    """A row of headers and a row for each item and currency. Counts are in the first row of an item alone, so sums
    over a column stay right."""
    names = _NAMES[group_by]
    sums = ("calls", "input_tokens", "cached_input_tokens", "output_tokens", "unpriced_calls")
    rows: list[list[Any]] = [[*names, *sums, "currency", "cost"]]
    for item in items:
        counts = [item[name] for name in sums]
        for currency, amount in (item["cost"] or {"": ""}).items():
            rows.append([*(item[name] for name in names), *counts, currency, amount])
            counts = [0] * len(sums)
    return rows


def _cost(item: Mapping[str, Any]) -> str:
    return ", ".join(f"{amount} {currency}" for currency, amount in (item["cost"] or {}).items())


def _column(header: str, name: str) -> Column:
    return Column(header, lambda item: item[name])
