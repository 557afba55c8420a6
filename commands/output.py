"""What commands print: a table for people, or the API's JSON for scripts. Pure."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Cell = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its header, and how an item's cell is found."""

    header: str
    cell: Cell


def json_text(answer: Any) -> str:
    """The API's answer, as a script parses it and a person can read it."""
    return json.dumps(answer, indent=2, ensure_ascii=False)


def table(columns: Sequence[Column], items: Sequence[Mapping[str, Any]]) -> str:
    """A line of headers and a line per item, aligned. Text from users cannot move the cursor or break a line."""
    rows = [[column.header for column in columns]]
    rows += [[cell_text(column.cell(item)) for column in columns] for item in items]
    widths = [max(len(row[place]) for row in rows) for place in range(len(columns))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def cell_text(value: Any) -> str:
    """A value in one printable line; `-` for none."""
    if value is None or value == "":
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
