"""A list of the API that can be exported, and how its items are written: CSV for spreadsheets, JSON lines. Pure."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policy.statements.csv_text import csv_text

CSV = "csv"
JSON_LINES = "jsonl"
FORMATS = (CSV, JSON_LINES)
Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of the API. `noun` names its items to users and in the state of an export."""

    noun: str
    path: str
    header: Sequence[str]
    row: Callable[[Item], Sequence[Any]]
    """The cells of an item, below the header."""

    def head(self, format: str) -> str:
        """Return what a file begins with."""
        return csv_text([self.header]) if format == CSV else ""

    def lines(self, format: str, items: Sequence[Item]) -> str:
        """Write the items in the given order, one a line; as JSON lines, they are as the API answers them."""
        if format == CSV:
            return csv_text(map(self.row, items))
        return "".join(f"{compact_json(item)}\n" for item in items)


def compact_json(value: Any) -> str:
    """Write JSON without spaces; characters outside ASCII stay."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
