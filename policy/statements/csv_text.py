"""Rows of CSV (RFC 4180) that a spreadsheet opens without running what a cell says. Pure."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

_FORMULA_STARTS = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""A spreadsheet takes text that begins so for a formula (OWASP, CSV injection). The last four are of full width."""


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """The rows as lines. Text that a spreadsheet would take for a formula gets a leading apostrophe."""
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows([_safe(cell) for cell in row] for row in rows)
    return lines.getvalue()


def _safe(cell: Any) -> Any:
    """Escape text only: a negative number is no formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA_STARTS) else cell
