"""Usage reports over the management API: all pages of one, and how a command prints them."""

from collections.abc import AsyncIterator, Mapping, Sequence
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
_SUMS = ("calls", "input_tokens", "cached_input_tokens", "output_tokens")
_FURTHER_SUMS = (
    *("cache_write_tokens", "cache_write_1h_tokens", "reasoning_tokens", "audio_input_tokens", "image_input_tokens"),
    *("audio_output_tokens", "image_output_tokens", "server_tool_calls", "uncharged_calls"),
)
"""Sums that a report leaves out where they are 0."""
ORDERS = (*_SUMS, *_FURTHER_SUMS, "unpriced_calls", "cost")
GROUPINGS = tuple(_NAMES)


async def read_report(client: Client, **query: Any) -> dict[str, Any]:
    """The report on one page: `items`, `pagination`, `totals` and its final `window`."""
    items: list[Any] = []
    whole: dict[str, Any] = {}
    async for answer in report_pages(client, _PAGE_ITEMS, **query):
        items += answer["items"]
        whole |= answer  # only the first page has the totals
    return {**whole, "items": items}


async def report_pages(client: Client, limit: int, **query: Any) -> AsyncIterator[dict[str, Any]]:
    """Each page of the report. All have the same `window`."""
    answer = await client.call("GET", PATH, limit=limit, **query)
    yield answer
    while (cursor := answer["pagination"]["cursor"]) is not None:
        answer = await client.call("GET", PATH, cursor=cursor)
        yield answer


def columns_of(group_by: str, items: Sequence[Mapping[str, Any]]) -> list[Column]:
    """The columns of a report's table: of the further sums those that an item has."""
    names = [_column(name.removeprefix("external_").upper(), name) for name in _names(group_by, items)]
    sums = (*_SUMS, *(name for name in _FURTHER_SUMS if any(name in item for item in items)))
    counts = [_column(name.removesuffix("_tokens").upper(), name) for name in sums]
    own = [Column("OWN CALLS", _own_calls), Column("OWN COST", _own_cost)] if _is_rolled_up(items) else []
    return [*names, *counts, Column("COST", _cost), _column("UNPRICED CALLS", "unpriced_calls"), *own]


def table_rows(group_by: str, answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The items of a report, and a last one of their totals. A roll-up counts each call in them once."""
    items = answer["items"]
    if not items or "totals" not in answer:  # a control of before has none
        return [*items]
    return [*items, {**answer["totals"], _names(group_by, items)[0]: "TOTAL"}]


def csv_rows(group_by: str, items: list[dict[str, Any]]) -> list[list[Any]]:
    """A row of headers and a row for each item and currency. Counts are in the first row of an item alone, so sums
    over a column stay right."""
    names = _names(group_by, items)
    sums = (*_SUMS, "unpriced_calls")
    further = (*_FURTHER_SUMS, *(("own_calls", "own_cost") if _is_rolled_up(items) else ()))
    rows: list[list[Any]] = [[*names, *sums, "currency", "cost", *further]]
    for item in items:
        counts = [item[name] for name in sums]
        others = [item.get(name, 0) for name in _FURTHER_SUMS]
        for currency, amount in (item["cost"] or {"": ""}).items():
            own = [item["own"]["calls"] if counts[0] else 0, _amount(item["own"], currency)] if "own" in item else []
            rows.append([*(item.get(name, "") for name in names), *counts, currency, amount, *others, *own])
            counts = [0] * len(sums)
            others = [0] * len(others)
    return rows


def _names(group_by: str, items: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    is_of_groups = any("group_id" in item for item in items)
    return (*_NAMES[group_by], "group_id") if is_of_groups else _NAMES[group_by]


def _is_rolled_up(items: Sequence[Mapping[str, Any]]) -> bool:
    return any("own" in item for item in items)


def _amount(totals: Mapping[str, Any], currency: str) -> str:
    return str((totals["cost"] or {}).get(currency, ""))


def _own_calls(item: Mapping[str, Any]) -> int | None:
    return item["own"]["calls"] if "own" in item else None


def _own_cost(item: Mapping[str, Any]) -> str | None:
    return _cost(item["own"]) if "own" in item else None


def _cost(item: Mapping[str, Any]) -> str:
    return ", ".join(f"{amount} {currency}" for currency, amount in (item["cost"] or {}).items())


def _column(header: str, name: str) -> Column:
    return Column(header, lambda item: item.get(name, ""))
