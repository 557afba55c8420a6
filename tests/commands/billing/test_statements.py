"""Statements and reports: exact lines, totals rounded once, nothing from outside runs or breaks a page."""

import csv
import io
from typing import Any

import pytest

from commands.billing.reports import columns_of, csv_rows, read_report, table_rows
from commands.output import table
from policy.statements.months import month_window
from policy.statements.statement import Statement, statement_csv, statement_html
from tests.commands.fake_api import FakeApi

PRICE = {"slug": "acme/a", "valid_from": "2026-11-01", "currency": "EUR", "input_per_million": "1.00"}
PRICE |= {"cached_input_per_million": "0.50", "output_per_million": "2.00", "per_call": "0.00"}


def line(amount: str | None, **more: Any) -> dict[str, Any]:
    sums = {"calls": 2, "input_tokens": 30, "cached_input_tokens": 10, "output_tokens": 5}
    return {"slug": "acme/a", "price": None if amount is None else PRICE, "amount": amount, **sums, **more}


def test_totals_are_the_exact_sum_rounded_once() -> None:
    statement = Statement("customer-1", "2026-11", [line("0.004"), line("0.004"), line(None)], True)
    rows = list(csv.DictReader(io.StringIO(statement_csv(statement))))
    assert [row["amount"] for row in rows] == ["0.004", "0.004", "unpriced", "0.01"]
    assert rows[-1]["slug"] == "TOTAL"
    assert rows[-1]["currency"] == "EUR"
    assert rows[0]["uncached_input_tokens"] == "20"
    assert rows[0]["output_per_million"] == "2.00"
    assert {row["status"] for row in rows} == {"final"}
    page = statement_html(statement)
    assert "Total: EUR 0.01" in page
    assert "2 calls have no price" in page
    assert "DRAFT" not in page


def test_text_from_outside_is_escaped_and_runs_in_no_spreadsheet() -> None:
    statement = Statement("=1+<script>", "2026-11", [line("1.00", slug="<b>&")], False)
    page = statement_html(statement)
    assert "<script>" not in page
    assert "&lt;b&gt;&amp;" in page
    assert "DRAFT" in page
    assert "\n'=1+<script>,2026-11,draft," in statement_csv(statement)


WHOLE = PRICE | {
    "cache_write_per_million": "1.25",
    "cache_write_1h_per_million": "2.00",
    "audio_input_per_million": "9.00",
    "image_input_per_million": "8.00",
    "audio_output_per_million": "7.00",
    "image_output_per_million": "6.00",
    "per_server_tool_call": "0.01",
    "service_tiers": {"flex": {"multiplier": "0.5"}},
    "long_context": {
        "above_input_tokens": 10,
        "input_per_million": "3.00",
        "cached_input_per_million": "0.30",
        "cache_write_per_million": "4.00",
        "output_per_million": "5.00",
    },
}


def test_a_line_shows_the_prices_that_its_amount_was_computed_with() -> None:
    parts = {"cache_write_tokens": 4, "cache_write_1h_tokens": 1, "audio_output_tokens": 2, "server_tool_calls": 3}
    lines = [
        line("1.00", price=WHOLE, service_tier="flex", **parts),
        line("2.00", price=WHOLE, long_context=True, **parts),
        line("3.00", price=WHOLE),
    ]
    statement = Statement("customer-1", "2026-11", lines, True)
    flex, long, plain, _total = csv.DictReader(io.StringIO(statement_csv(statement)))
    assert (flex["service_tier"], flex["multiplier"], flex["long_context"]) == ("flex", "0.5", "")
    assert (flex["input_per_million"], flex["cache_write_tokens"], flex["cache_write_per_million"]) == (
        *("1.00", "4", "1.25"),
    )
    assert (flex["per_server_tool_call"], flex["audio_input_tokens"], flex["audio_input_per_million"]) == (
        *("0.01", "", ""),
    )
    assert (long["long_context"], long["multiplier"], long["input_per_million"]) == ("yes", "", "3.00")
    assert (long["cache_write_1h_per_million"], long["audio_output_per_million"]) == ("4.00", "5.00")
    assert (plain["input_per_million"], plain["cache_write_tokens"], plain["service_tier"]) == ("1.00", "", "")
    page = statement_html(statement)
    assert "cache write tokens" in page
    assert "image input tokens" not in page
    assert "groups below" not in page
    below = Statement("customer-1", "2026-11", lines[2:], True, with_groups_below=True)
    assert "Calls of all groups below are included." in statement_html(below)
    assert "cache write tokens" not in statement_html(below)


def test_a_month_is_a_utc_calendar_month() -> None:
    assert month_window("2026-12") == ("2026-12-01T00:00:00.000Z", "2027-01-01T00:00:00.000Z")
    for text in ("2026", "2026-13", "2026-1", "9999-12", "2026-11-01"):
        with pytest.raises(ValueError, match="such as 2026-11"):
            month_window(text)


async def test_all_pages_of_a_report_are_read() -> None:
    def answer(_body: Any, query: Any) -> Any:
        first = "cursor" not in query
        pagination = {"has_more": first, "cursor": "next" if first else None}
        totals = {"totals": {"n": 3}} if first else {}
        return {"items": [{"n": 1 if first else 2}], "pagination": pagination, "window": {}, **totals}

    api = FakeApi({"GET /v1/gateway/usage_report": answer})
    report = await read_report(api, start="s", group_by="day")
    assert [item["n"] for item in report["items"]] == [1, 2]
    assert report["totals"] == {"n": 3}
    assert api.requests[1][3] == {"cursor": "next"}


def test_a_table_ends_with_the_totals() -> None:
    sums = {"calls": 2, "input_tokens": 3, "cached_input_tokens": 1, "output_tokens": 4, "unpriced_calls": 0}
    own = {**sums, "calls": 1, "cost": None}
    item = {"external_entity_id": "c", "group_id": "grp_1", **sums, "cost": {"EUR": "1.00"}, "own": own}
    totals = {**sums, "calls": 3, "cost": {"EUR": "1.50", "USD": "2.00"}, "unpriced_calls": 1}
    answer: dict[str, Any] = {"items": [item], "totals": totals}
    lines = table(columns_of("entity", answer["items"]), table_rows("entity", answer)).splitlines()
    cells = [[cell for cell in line.split("  ") if cell] for line in lines[1:]]
    assert [[cell.strip() for cell in row] for row in cells] == [
        ["c", "grp_1", "2", "3", "1", "4", "1.00 EUR", "0", "1", "-"],
        ["TOTAL", "-", "3", "3", "1", "4", "1.50 EUR, 2.00 USD", "1", "-", "-"],
    ]
    assert table_rows("entity", {"items": [], "totals": totals}) == []


def test_csv_counts_an_item_of_two_currencies_once() -> None:
    sums = {"calls": 2, "input_tokens": 3, "cached_input_tokens": 1, "output_tokens": 4, "unpriced_calls": 0}
    rows = csv_rows("slug", [{"slug": "acme/a", **sums, "cost": {"EUR": "1.00", "USD": "2.00"}}])
    first, second = ([*dict(zip(rows[0], row, strict=True)).values()][:8] for row in rows[1:])
    assert (first, second) == (["acme/a", 2, 3, 1, 4, 0, "EUR", "1.00"], ["acme/a", 0, 0, 0, 0, 0, "USD", "2.00"])


def test_a_report_shows_the_further_sums_that_it_has() -> None:
    sums = {"calls": 2, "input_tokens": 3, "cached_input_tokens": 1, "output_tokens": 4, "unpriced_calls": 0}
    own = {**sums, "calls": 1, "cost": {"EUR": "0.50"}}
    item = {"external_entity_id": "c", "group_id": "grp_1", **sums, "cost": {"EUR": "1.00", "USD": "2.00"}, "own": own}
    items = [item | {"cache_write_tokens": 7}, item]
    headers = [column.header for column in columns_of("entity", items)]
    assert headers == [
        *("ENTITY_ID", "GROUP_ID", "CALLS", "INPUT", "CACHED_INPUT", "OUTPUT", "CACHE_WRITE"),
        *("COST", "UNPRICED CALLS", "OWN CALLS", "OWN COST"),
    ]
    rows = [dict(zip(csv_rows("entity", items)[0], row, strict=True)) for row in csv_rows("entity", items)[1:]]
    assert [row["cache_write_tokens"] for row in rows] == [7, 0, 0, 0]
    assert [(row["own_calls"], row["own_cost"]) for row in rows] == [(1, "0.50"), (0, "")] * 2
