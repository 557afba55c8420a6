"""The operator's price list as a CSV file: checked before any is set; a refusal undoes the rest.

A column is the path of a member of the API. See docs/reference/usage-reports.md#prices.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from commands.connection import Client
from commands.errors import AwayError, ManagementError, RefusedError
from commands.lists import all_items
from policy.endpoints import SLUG_PATTERN
from policy.price_wire import (
    AMOUNT_MEMBERS,
    COUNT_MEMBERS,
    LONG_AMOUNTS,
    parse_multiplier,
    parse_token_count,
    price_from_wire,
)
from policy.prices import parse_amount, parse_currency, parse_date

PATH = "/v1/gateway/prices"
_MAX_SHOWN = 10
_NEEDED = ("slug", "valid_from", "currency", "input_per_million", "output_per_million")
_LONG_CONTEXT = "long_context."
_LONG_NEEDED = tuple(
    f"{_LONG_CONTEXT}{name}" for name in ("above_input_tokens", *LONG_AMOUNTS) if name != "cache_write_per_million"
)
_TIER = re.compile(r"service_tiers\.(?P<tier>.{1,64})\.multiplier", re.DOTALL)
Place = tuple[str, str]
"""Slug and date."""


class PriceFileError(ManagementError):
    """The file is not a price list. The message has a line for each of the first wrong cells."""

    def __init__(self, problems: list[str]) -> None:
        more = [f"and {len(problems) - _MAX_SHOWN} more"] if len(problems) > _MAX_SHOWN else []
        super().__init__("\n".join([*problems[:_MAX_SHOWN], *more, "Nothing was set."]))


@dataclass(frozen=True, slots=True)
class PriceLine:
    """A price as the API takes it, and where it is from, such as `line 2`."""

    source: str
    body: Mapping[str, Any]

    @property
    def place(self) -> Place:
        return self.body["slug"], self.body["valid_from"]

    def is_as(self, stored: Mapping[str, Any]) -> bool:
        """Return whether the API shows the same price."""
        slug = self.body["slug"]
        return price_from_wire(slug, self.body) == price_from_wire(slug, stored)


def read_prices(content: bytes) -> list[PriceLine]:
    """The prices of a CSV file with a header. PriceFileError names line and column of what is wrong."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise PriceFileError([f"line {line}: no text in UTF-8"]) from None
    rows = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    lines: list[PriceLine] = []
    problems: list[str] = []
    try:
        header = [name.strip() for name in next(rows, [])]
        _check_header(header)
        for row in rows:
            if row:
                lines.append(_line(rows.line_num, header, row, problems))
    except csv.Error as error:
        raise PriceFileError([f"line {rows.line_num}: no CSV ({error})"]) from None
    if problems or (problems := _repeated(lines)):
        raise PriceFileError(problems)
    return lines


def _check_header(header: list[str]) -> None:
    problems = [
        f"line 1: unknown column {name!r}" for name in header if name not in _PARSERS and not _TIER.fullmatch(name)
    ]
    problems += [f"line 1: column {name} is there twice" for name in dict.fromkeys(header) if header.count(name) > 1]
    problems += [f"line 1: column {name} is missing" for name in _needed(header) if name not in header]
    if problems:
        raise PriceFileError(problems)


def _needed(names: Iterable[str]) -> list[str]:
    """These columns, and those that have no default beside them."""
    columns = dict.fromkeys((*_NEEDED, *names))
    if any(name.startswith(_LONG_CONTEXT) for name in columns):
        columns |= dict.fromkeys(_LONG_NEEDED)
    return list(columns)


def _line(number: int, header: list[str], row: list[str], problems: list[str]) -> PriceLine:
    """The price; what is wrong is added to `problems`."""
    cells = dict(zip(header, map(str.strip, row), strict=False))
    if len(row) != len(header):
        problems.append(f"line {number}: {len(row)} cells, but the header has {len(header)}")
        return PriceLine(f"line {number}", cells)
    body: dict[str, Any] = {}
    for name in _needed(name for name, text in cells.items() if text):
        try:
            _set_member(body, name, cells[name])
        except ValueError as error:
            problems.append(f"line {number}, column {name}: {cells[name]!r} {error}")
    return PriceLine(f"line {number}", body)


def _set_member(body: dict[str, Any], column: str, text: str) -> None:
    """Put what the cell says at its place. Raises ValueError."""
    tier = _TIER.fullmatch(column)
    value = (_MULTIPLIER if tier else _PARSERS[column])(text)
    *places, name = ("service_tiers", tier["tier"], "multiplier") if tier else column.split(".")
    for place in places:
        body = body.setdefault(place, {})
    body[name] = value


def _check_slug(text: str) -> None:
    """The API checks the rest: whether the workspace owns the prefix."""
    if SLUG_PATTERN.fullmatch(text) is None:
        raise ValueError("must be a slug such as acme/chat")


def _checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    """The text, when `parse` reads it."""

    def text_of(text: str) -> str:
        parse(text)
        return text

    return text_of


_AMOUNT = _checked(parse_amount)
_MULTIPLIER = _checked(parse_multiplier)
_PARSERS: dict[str, Callable[[str], str | int]] = {
    "slug": _checked(_check_slug),
    "valid_from": _checked(parse_date),
    "currency": _checked(parse_currency),
    **dict.fromkeys(AMOUNT_MEMBERS, _AMOUNT),
    **dict.fromkeys((f"{_LONG_CONTEXT}{name}" for name in LONG_AMOUNTS), _AMOUNT),
    **dict.fromkeys((*COUNT_MEMBERS, f"{_LONG_CONTEXT}above_input_tokens"), parse_token_count),
}
"""Readers of cells by column, to the value of the member. Columns of tiers are beside."""


def _repeated(lines: list[PriceLine]) -> list[str]:
    first: dict[Place, str] = {}
    problems = []
    for line in lines:
        if (earlier := first.setdefault(line.place, line.source)) != line.source:
            problems.append(f"{line.source}, column valid_from: {earlier} has a price of this slug and date")
    return problems


async def set_prices(client: Client, lines: list[PriceLine]) -> int:
    """Set those that differ from the stored ones; returns how many. If the API refuses one, the others are undone."""
    stored = {(price["slug"], price["valid_from"]): price for price in await all_items(client, PATH)}
    changed = [line for line in lines if line.place not in stored or not line.is_as(stored[line.place])]
    for count, line in enumerate(changed):
        try:
            await client.call("PUT", PATH, dict(line.body))
        except RefusedError as error:
            await _undo(client, changed[:count], stored)
            raise PriceFileError([f"{line.source}: {error}"]) from None
        except AwayError as error:
            raise AwayError(f"{error}\n{count} of {len(changed)} prices were set: run the command again") from None
    return len(changed)


async def _undo(client: Client, prices_set: list[PriceLine], stored: Mapping[Place, Mapping[str, Any]]) -> None:
    try:
        for line in reversed(prices_set):
            slug, valid_from = line.place
            if line.place in stored:
                old = {name: value for name, value in stored[line.place].items() if name != "managed_by"}
                await client.call("PUT", PATH, old)
            else:
                await client.call("DELETE", PATH, slug=slug, valid_from=valid_from)
    except ManagementError as error:
        sources = f"{prices_set[0].source} to {prices_set[-1].source}"
        raise ManagementError(f"a price was refused, and those of {sources} may remain set ({error})") from None
