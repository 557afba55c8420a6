"""An upstream's invoice against events: columns, sums, tolerance, and files that cannot be read."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from commands.edges.invoice_file import opened_invoice
from commands.errors import InvoiceError
from commands.reconcile.invoice_check import Columns, InvoiceCheck, models_of
from commands.records.billing_events import read_event
from tests.fakes.listed_events import listed_event

DAY = listed_event(0)["timestamp"][:10]
DAYS = (DAY, "2026-12-01")


def check_of(tmp_path: Path, text: str, columns: str | None = None, **more: Any) -> InvoiceCheck:
    """An invoice of `text` against four events of one day: 20 input, 2 of them cached, 10 output."""
    path = tmp_path / "invoice.csv"
    path.write_text(text)
    with opened_invoice(path) as rows:
        check = InvoiceCheck(Columns.of(columns, rows.fieldnames or ()), {"acme/chat": "gpt-x"}, DAYS, **more)
        for row in rows:
            check.add_row(rows.line_num, row)
    for number in range(4):
        check.add_event(read_event(listed_event(number)))
    return check


def told(check: InvoiceCheck) -> list[tuple[str, str, str, str]]:
    return [
        (difference.what, difference.where, difference.ours, difference.theirs) for difference in check.differences()
    ]


def test_equal_sums_per_day_and_model_are_no_difference(tmp_path: Path) -> None:
    text = f"Date,Model,In,Out,Price\n{DAY}T00:00:00Z,gpt-x,12,4,1.5\n{DAY},gpt-x,8,6,\n"
    assert told(check_of(tmp_path, text, "day=Date,model=Model,input=In,output=Out")) == []


def test_each_figure_that_differs_is_told(tmp_path: Path) -> None:
    text = f"day,model,uncached_input,cached_input,output,calls\n{DAY},gpt-x,18,3,10,4\n{DAY},gpt-y,0,0,1,1\n"
    assert told(check_of(tmp_path, text)) == [
        ("invoice: cached_input", f"{DAY} gpt-x", "2", "3"),
        ("invoice: calls", f"{DAY} gpt-y", "0", "1"),
        ("invoice: output", f"{DAY} gpt-y", "0", "1"),
    ]


def test_line_that_the_invoice_lacks_is_told(tmp_path: Path) -> None:
    assert told(check_of(tmp_path, "day,output\n")) == [("invoice: output", DAY, "10", "0")]


@pytest.mark.parametrize(("tolerance", "differs"), [("0.09", True), ("0.1", False)])
def test_tolerance_is_a_part_of_the_larger_figure(tmp_path: Path, tolerance: str, differs: bool) -> None:
    check = check_of(tmp_path, "model,output\ngpt-x,9\n", tolerance=Fraction(tolerance))
    assert bool(told(check)) is differs


def test_calls_are_compared_by_request_id(tmp_path: Path) -> None:
    text = "request_id,model,output\nreq-0,gpt-x,1\nreq-1,gpt-x,5\nreq-3,gpt-x,4\nreq-9,gpt-x,0\n"
    assert told(check_of(tmp_path, text)) == [
        ("invoice: output", "req-1", "2", "5"),
        ("invoice: output", "req-2", "3", "0"),
    ]


def test_rows_outside_of_the_window_are_counted_and_left_out(tmp_path: Path) -> None:
    check = check_of(tmp_path, f"day,output\n2026-01-01,99\n{DAY},10\n2026-12-01,99\n")
    assert told(check) == []
    counts = {"invoice_lines": 1, "invoice_rows_outside_the_window": 2, "events_left_out_of_the_invoice": 0}
    assert check.counts() == counts


def test_events_of_slugs_that_the_invoice_is_not_about_are_counted(tmp_path: Path) -> None:
    check = check_of(tmp_path, f"day,output\n{DAY},10\n")
    check.add_event(read_event(listed_event(9, slug="acme/gone")))
    assert told(check) == []
    assert check.counts()["events_left_out_of_the_invoice"] == 1


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("a,b\n", None, "It has a, b"),
        ("", None, "It has none"),
        ("day\n", None, "one of calls"),
        ("day,Out\n", "day=day,output=Aus", "Aus"),
        ("day,Out\n", "day=day,outputs=Out", "outputs"),
        ("day,output\nyesterday,1\n", None, "row 2: 'yesterday'"),
        ("day,output\n2026-11-18,1.5\n", None, "output is '1.5'"),
        ("day,output\n2026-11-18,-1\n", None, "whole number"),
        ("day,output\n2026-11-18,٣\n", None, "whole number"),
        ('day,output\n"2026-11-18,1\n', None, "no CSV file"),
        ("day,output\n2026-11-18\n", None, "whole number"),
        ("day,output\n2026-11-18,1,234\n", None, "row 2: more cells"),
        ("day,output,output\n2026-11-18,1,2\n", None, "output is there twice"),
        ("day,In,Out\n", "day=day,output=In,output=Out", "output is given twice"),
    ],
)
def test_invoice_that_cannot_be_read_is_named(tmp_path: Path, text: str, columns: str | None, message: str) -> None:
    with pytest.raises(InvoiceError, match=r"invoice\.csv: ") as caught:
        check_of(tmp_path, text, columns)
    assert message in str(caught.value)


def test_file_that_is_missing_or_binary_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    for name in ("missing", "binary"):
        with pytest.raises(InvoiceError, match=name), opened_invoice(tmp_path / name) as rows:
            list(rows)


def test_models_are_those_of_the_providers_endpoints() -> None:
    endpoints: Any = [
        {"slug": "acme/a", "targets": [{"provider": "VENDOR_A", "target_model": "x"}]},
        {"slug": "acme/b", "targets": [{"provider": "PLATFORM", "target_model": None}]},
        {"slug": "acme/c", "targets": [{"provider": "HOUSE", "target_model": None}]},
        {"slug": "acme/d", "targets": [{"provider": "REMOVED", "target_model": None}]},
    ]
    providers = {"VENDOR_A": "VENDOR_A", "ANTHROPIC": "VENDOR_A", "PLATFORM": "PLATFORM", "HOUSE": "PLATFORM"}
    assert list(models_of(endpoints, None, {})) == ["acme/a", "acme/b", "acme/c", "acme/d"]
    assert models_of(endpoints, None, {})["acme/b"] == "acme/b"
    for name in ("VENDOR_A", "ANTHROPIC"):
        assert models_of(endpoints, name, providers) == {"acme/a": "x"}
    for name in ("PLATFORM", "HOUSE"):
        assert list(models_of(endpoints, name, providers)) == ["acme/b", "acme/c"]
    assert list(models_of(endpoints, "REMOVED", providers)) == ["acme/d"]
