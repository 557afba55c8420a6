"""Sums as reports read them, whether over events or over hourly sums: in columns, each a JSON array that the database
makes.

A page may have 200 000 sums. As rows of a driver each costs several microseconds, in columns less than one.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import orjson

from control.long_work import CHARS_PER_ITEM
from policy.prices import Figures

SUMS_AT_ONCE = 250
"""Sums that are added up at once. The lists of their figures stay small."""
COLUMNS = (
    "external_entity_id",
    "api_key_prefix",
    "model_slug",
    "calls",
    "input_tokens",
    "output_tokens",
    "cached_input_tokens",
)
"""The columns of a sum, behind its day."""
_ARRAYS = {"sqlite": "json_group_array({})", "postgresql": "CAST(json_agg({}) AS text)"}


class SumSlice(NamedTuple):
    """Some sums of a day, in columns: each place is the calls of one slug that share the other names.

    Names by which sums are not told apart are "".
    """

    entities: Sequence[str]
    keys: Sequence[str]
    slugs: Sequence[str]
    figures: Sequence[Figures]


class DaySums(NamedTuple):
    """The sums of one UTC day, as columns of JSON. Several of them may have the same names: add them up."""

    day_ms: int
    columns: Sequence[str]

    @property
    def items(self) -> int:
        """The number of items of long work that the sums are."""
        return sum(map(len, self.columns)) // CHARS_PER_ITEM

    def slices(self) -> Iterator[SumSlice]:
        """The sums, some at a time."""
        columns: list[list[Any]] = [orjson.loads(text) for text in self.columns]
        for start in range(0, len(columns[0]), SUMS_AT_ONCE):
            entities, keys, slugs, *figures = (column[start : start + SUMS_AT_ONCE] for column in columns)
            yield SumSlice(entities, keys, slugs, list(zip(*figures, strict=True)))


def days_of(rows: Sequence[Sequence[Any]]) -> Sequence[DaySums]:
    """Read the rows of a query that `in_columns` made."""
    return [DaySums(day_ms, columns) for day_ms, *columns in rows]


def in_columns(dialect: str, sums: str) -> str:
    """A query with a row for each day, from one whose rows have `day_ms` and `COLUMNS`."""
    arrays = ", ".join(_ARRAYS[dialect].format(f"s.{name}") for name in COLUMNS)
    return f"SELECT s.day_ms, {arrays} FROM ({sums}) AS s GROUP BY s.day_ms"  # noqa: S608 (ours)


class Entities(NamedTuple):
    """All entities behind `after`, up to and including `last` if that is given, in the order of their names."""

    after: str
    last: str | None


class SumSource(Protocol):
    """Sums over a window: of one workspace, and of the first entity that the window names, if it names one."""

    async def totals(self, by_key: bool, slug: str | None = None) -> Sequence[DaySums]:
        """The sums of the window: of all entities together, or of the entity that it names.

        `by_key`: of each key by itself; only with an entity. `slug`: only its calls.
        """

    async def of_entities(self, entities: Entities, by_key: bool, slug: str | None = None) -> Sequence[DaySums]:
        """The sums of each of these entities. `slug`: only its calls."""

    async def last_entity(self, after: str, sums: int) -> str | None:
        """The last entity to read at once, if a day should have about `sums` sums; None if no others follow."""
