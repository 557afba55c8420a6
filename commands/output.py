"""The output of commands: a table for people, or the API's JSON for scripts. Pure."""

import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

Cell = Callable[[Mapping[str, Any]], Any]
_MAY_NEED_ESCAPE = re.compile("[^\n -~\U00010000-\U0010ffff]")
"""Characters that may need an escape. Beyond 16 bits, no terminal obeys them, and JSON's two surrogates break YAML."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its header, and how an item's cell is found."""

    header: str
    cell: Cell


def cost_text(item: Mapping[str, Any]) -> str | None:
    """The member `cost` with its currency; None where a call has no price."""
    cost = item["cost"]
    return None if cost is None else f"{cost['amount']} {cost['currency']}"


def json_text(answer: Any) -> str:
    """The API's answer, as a script parses it and a person can read it: what a terminal may obey is escaped."""
    return _MAY_NEED_ESCAPE.sub(_escaped, _indented(answer))


def _indented(answer: Any) -> str:
    """Use orjson, in a twentieth of the time, except for what it refuses: numbers of more than 64 bits, for example."""
    try:
        return orjson.dumps(answer, option=orjson.OPT_INDENT_2).decode()
    except orjson.JSONEncodeError:
        return json.dumps(answer, indent=2, ensure_ascii=False)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    return character if character.isprintable() else json.dumps(character)[1:-1]


class Table:
    """A table that is printed part by part: as wide as what has come so far needs."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._widths = [0] * len(columns)

    def rows(self, items: Sequence[Mapping[str, Any]]) -> str:
        """A line per item, the first time below headers. Text from users cannot move the cursor or break a line."""
        cells = [] if any(self._widths) else [[column.header for column in self._columns]]
        cells += [[cell_text(column.cell(item)) for column in self._columns] for item in items]
        for row in cells:
            self._widths = [max(width, width_of(text)) for width, text in zip(self._widths, row, strict=True)]
        lines = [
            "  ".join(_padded(text, width) for text, width in zip(row, self._widths, strict=True)) for row in cells
        ]
        return "\n".join(line.rstrip() for line in lines)


def table(columns: Sequence[Column], items: Sequence[Mapping[str, Any]]) -> str:
    """The whole table at once."""
    return Table(columns).rows(items)


def cell_text(value: Any) -> str:
    """A value in one printable line; `-` for none."""
    if value is None or value == "":
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def width_of(text: str) -> int:
    """Count the columns of a terminal that the text takes: two for a wide character, none for a combining one."""
    return len(text) if text.isascii() else sum(map(_columns_of, text))


def cut(text: str, width: int) -> str:
    """Return as much of the beginning as fits into so many columns."""
    columns = 0
    for place, character in enumerate(text):
        columns += _columns_of(character)
        if columns > width:
            return text[:place]
    return text


def _columns_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _padded(text: str, width: int) -> str:
    return text + " " * (width - width_of(text))
