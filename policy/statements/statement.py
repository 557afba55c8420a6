"""The monthly statement of one entity: its calls by slug and price, exact amounts, and totals rounded once. Pure.

See docs/reference/usage-reports.md#statements.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from html import escape
from itertools import chain
from typing import Any

from policy.prices import amount_text, rounded_text, sum_of
from policy.statements.csv_text import csv_text

_HEADERS = (
    *("slug", "price_valid_from", "currency", "calls", "uncached_input_tokens", "cached_input_tokens", "output_tokens"),
    *("input_per_million", "cached_input_per_million", "output_per_million", "per_call", "amount"),
)
_PRICED_APART = {
    "cache_write_tokens": "cache_write_per_million",
    "cache_write_1h_tokens": "cache_write_1h_per_million",
    "audio_input_tokens": "audio_input_per_million",
    "image_input_tokens": "image_input_per_million",
    "audio_output_tokens": "audio_output_per_million",
    "image_output_tokens": "image_output_per_million",
    "server_tool_calls": "per_server_tool_call",
}
"""Parts of the input and of the output with prices of their own, and calls of tools, and those prices."""
_FURTHER_HEADERS = (
    *("service_tier", "multiplier", "long_context", "uncharged_calls", "reasoning_tokens"),
    *chain.from_iterable(_PRICED_APART.items()),
)
"""The columns of what few calls have."""
_MONEY = frozenset(
    (
        *("price_valid_from", "currency", "input_per_million", "cached_input_per_million", "output_per_million"),
        *("per_call", "amount", "service_tier", "multiplier", "long_context", "uncharged_calls"),
        *_PRICED_APART.values(),
    )
)
"""The columns that a statement without amounts does not have."""
_OF_AMOUNTS = "Prices are per million tokens and per call. Amounts are exact; each total is rounded once, half to even."
_STYLE = (
    "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse;width:100%}"
    "th,td{border-bottom:1px solid #ccc;padding:.3em .5em;text-align:right;overflow-wrap:anywhere}"
    "th:first-child,td:first-child{text-align:left}.note{color:#444}@media print{body{margin:0}}"
)


@dataclass(frozen=True, slots=True)
class Statement:
    """An entity's month. `lines`: those of the usage report. `is_final`: no event of the month can be added.

    `with_groups_below`: the lines have the calls of all groups below, too. Without `shows_amounts` no column is about
    money; the lines then have no prices.
    """

    entity: str
    month: str
    lines: Sequence[Mapping[str, Any]]
    is_final: bool
    with_groups_below: bool = False
    shows_amounts: bool = True

    @property
    def headers(self) -> Sequence[str]:
        return self._columns(_HEADERS)

    @property
    def further_headers(self) -> Sequence[str]:
        return self._columns(_FURTHER_HEADERS)

    def _columns(self, names: Sequence[str]) -> Sequence[str]:
        return [name for name in names if self.shows_amounts or name not in _MONEY]

    @property
    def totals(self) -> dict[str, Decimal]:
        """The exact total for each currency."""
        priced = [line for line in self.lines if line["price"] is not None]
        return sum_of((line["price"]["currency"], Decimal(line["amount"])) for line in priced)

    @property
    def status(self) -> str:
        return "final" if self.is_final else "draft"

    @property
    def unpriced_calls(self) -> int:
        return sum(line["calls"] for line in self.lines if line["price"] is None)


def statement_text(statement: Statement, form: str) -> str:
    """The statement as `csv` or `html`."""
    return statement_csv(statement) if form == "csv" else statement_html(statement)


def statement_csv(statement: Statement) -> str:
    """A row of headers, a row for each slug and price, and a row `TOTAL` for each currency."""
    headers = statement.headers
    further_headers = statement.further_headers
    rows: list[Sequence[Any]] = [("entity", "month", "status", *headers, *further_headers)]
    first = (statement.entity, statement.month, statement.status)
    rows += [(*first, *_cells(line, headers), *_further_cells(line, further_headers)) for line in statement.lines]
    for currency, total in statement.totals.items():
        blank = ("",) * (len(_HEADERS) - 4)
        further = ("",) * len(_FURTHER_HEADERS)
        rows.append((*first, "TOTAL", "", currency, *blank, rounded_text(currency, total), *further))
    return csv_text(rows)


def statement_html(statement: Statement) -> str:
    """A printable page that loads nothing. Every text from outside is escaped."""
    title = f"Statement {escape(statement.month)}: {escape(statement.entity)}"
    headers = statement.headers
    further = _headers_with_values(statement)
    rows = [_row("td", (*_cells(line, headers), *_further_cells(line, further))) for line in statement.lines]
    totals = [
        f"<p><strong>Total: {escape(currency)} {rounded_text(currency, total)}</strong>"
        f" <span class=note>(exactly {amount_text(total)})</span></p>"
        for currency, total in statement.totals.items()
    ]
    notes = [f"<p class=note>{escape(note)}</p>" for note in _notes(statement)]
    return "\n".join(
        (
            f'<!doctype html><html lang=en><head><meta charset="utf-8"><title>{title}</title>',
            f"<style>{_STYLE}</style></head><body><h1>{title}</h1>",
            "<table>",
            _row("th", [header.replace("_", " ") for header in (*headers, *further)]),
            *rows,
            "</table>",
            *totals,
            *notes,
            "</body></html>\n",
        )
    )


def _notes(statement: Statement) -> list[str]:
    notes = [_OF_AMOUNTS] if statement.shows_amounts else []
    if statement.with_groups_below:
        notes.append("Calls of all groups below are included.")
    if statement.unpriced_calls and statement.shows_amounts:
        notes.append(f"{statement.unpriced_calls} calls have no price and are in no amount.")
    if not statement.is_final:
        notes.append("DRAFT: the month is not over, so more calls will be added.")
    return notes


def _cells(line: Mapping[str, Any], headers: Sequence[str]) -> Sequence[Any]:
    """Return the cells of these columns of `_HEADERS`."""
    cached = line["cached_input_tokens"]
    price = line["price"]
    cells = {name: line.get(name, "") for name in ("slug", "calls", "cached_input_tokens", "output_tokens", "amount")}
    cells["uncached_input_tokens"] = line["input_tokens"] - cached
    if price is None:
        cells["amount"] = "unpriced"
    else:
        cells |= {"price_valid_from": price["valid_from"], "currency": price["currency"]}
    unit_prices = _unit_prices(line)
    return [cells.get(name, unit_prices.get(name, "")) for name in headers]


def _unit_prices(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """The prices of a line, those of long context if it has them. A multiplier of its tier is not in them."""
    price: Mapping[str, Any] = line["price"] or {}
    if not line.get("long_context"):
        return price
    long_context: Mapping[str, Any] = price["long_context"]
    input = dict.fromkeys(("audio_input_per_million", "image_input_per_million"), long_context["input_per_million"])
    output = dict.fromkeys(("audio_output_per_million", "image_output_per_million"), long_context["output_per_million"])
    writes = {"cache_write_1h_per_million": long_context["cache_write_per_million"]}
    return {**price, **input, **output, **writes, **long_context}


def _further_cells(line: Mapping[str, Any], headers: Iterable[str]) -> Sequence[Any]:
    """The cells of these columns: figures that are 0 and prices of what a line has none of are empty."""
    tier = line.get("service_tier", "")
    cells = {name: line.get(name, "") for name in _FURTHER_HEADERS}
    cells["long_context"] = "yes" if line.get("long_context") else ""
    if tier:
        cells["multiplier"] = line["price"]["service_tiers"][tier]["multiplier"]
    unit_prices = _unit_prices(line)
    cells |= {price: unit_prices.get(price, "") for name, price in _PRICED_APART.items() if name in line}
    return [cells[name] for name in headers]


def _headers_with_values(statement: Statement) -> Sequence[str]:
    headers = statement.further_headers
    rows = [_further_cells(line, headers) for line in statement.lines]
    return [name for place, name in enumerate(headers) if any(row[place] != "" for row in rows)]


def _row(kind: str, cells: Sequence[Any]) -> str:
    return "<tr>" + "".join(f"<{kind}>{escape(str(cell))}</{kind}>" for cell in cells) + "</tr>"
