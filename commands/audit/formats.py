"""How exported changes are written: CSV for spreadsheets, JSON lines as the API answers them. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from commands.csv_text import csv_text

CSV, JSON_LINES = "csv", "jsonl"
FORMATS = (CSV, JSON_LINES)
_TEXTS = ("timestamp", "id", "actor", "action", "resource", "request_id")
_SIDES = ("before", "after")


def head(format: str) -> str:
    """What a file begins with."""
    return csv_text([(*_TEXTS, *_SIDES)]) if format == CSV else ""


def lines(format: str, changes: Sequence[Mapping[str, Any]]) -> str:
    """The changes in the given order, one a line."""
    if format == CSV:
        return csv_text(_row(change) for change in changes)
    return "".join(f"{_json(change)}\n" for change in changes)


def _row(change: Mapping[str, Any]) -> list[Any]:
    sides = ["" if change[name] is None else _json(change[name]) for name in _SIDES]
    return [*(change[name] or "" for name in _TEXTS), *sides]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
