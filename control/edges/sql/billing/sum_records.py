"""Sums as reports read them, whether over events or over hourly sums: in columns, each a JSON array that the database
makes.

A page may have 200 000 sums. As rows of a driver each costs several microseconds, in columns less than one.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from itertools import compress
from typing import Any, NamedTuple, Protocol

import orjson

from control.long_work import CHARS_PER_ITEM
from control.records.usage_sums import Figures

SUMS_AT_ONCE = 250
"""Sums that are added up at once. The lists of their figures stay small."""
SUMMED = (
    "calls",
    "per_call_charges",
    "input_tokens",
    "output_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "cache_write_1h_tokens",
    "reasoning_tokens",
    "audio_input_tokens",
    "image_input_tokens",
    "audio_output_tokens",
    "image_output_tokens",
    "server_tool_calls",
)
"""The figures of a sum."""
_FURTHER = ("s.calls - s.per_call_charges", *(f"s.{name}" for name in SUMMED[5:]))
"""The members of a `Usage` that are 0 in most sums, in its order."""
_IS_PLAIN = f"({' + '.join(_FURTHER)}) = 0"
_COLUMNS = (
    "s.external_entity_id",
    "s.part",
    "CASE WHEN s.above_input_tokens = 0 AND s.service_tier = '' THEN s.model_slug"
    " ELSE s.model_slug || ' ' || s.above_input_tokens || ' ' || s.service_tier END",
    "s.calls",
    "s.input_tokens",
    "s.output_tokens",
    "s.cached_input_tokens",
    f"CASE WHEN {_IS_PLAIN} THEN NULL ELSE {{array}}({', '.join(_FURTHER)}) END",
)
"""The columns of a `SumSlice`."""
_ARRAYS = {"sqlite": "json_group_array({})", "postgresql": "CAST(json_agg({}) AS text)"}
_ARRAY = {"sqlite": "json_array", "postgresql": "json_build_array"}


class RateKey(NamedTuple):
    """All that the price of a token depends on, besides its day and its kind.

    `above_input_tokens`: the largest of the bounds of long context that the input of each call exceeds.
    """

    slug: str
    above_input_tokens: int
    service_tier: str

    @classmethod
    def from_text(cls, text: str) -> "RateKey":
        """Read it as a sum has it: a slug, or slug, bound and tier between blanks, of which a slug has none."""
        slug, _, rest = text.partition(" ")
        above, _, tier = rest.partition(" ")
        return cls(slug, int(above or 0), tier)


class Apart(Enum):
    """The name by which the sums of an entity are kept apart."""

    NOTHING = 0
    KEY = 1
    PATH = 2
    """The ids of groups from the root to the one that called, each with `/`."""


class SumSlice(NamedTuple):
    """Some sums of a day, in columns: each place is the calls of one `RateKey` that share the other names.

    Names by which sums are not kept apart are "". `parts`: the names of `Apart`. `rate_keys`: as text, so that one
    look-up finds the rates.
    """

    entities: Sequence[str]
    parts: Sequence[str]
    rate_keys: Sequence[str]
    figures: Sequence[Figures]

    def where(self, is_wanted: Callable[[str], bool]) -> "SumSlice":
        """The sums of these parts."""
        columns: Sequence[Sequence[Any]] = self
        matches = list(map(is_wanted, self.parts))
        return SumSlice._make(list(compress(column, matches)) for column in columns)


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
            entities, parts, rate_keys, *figures = (column[start : start + SUMS_AT_ONCE] for column in columns)
            yield SumSlice(entities, parts, rate_keys, list(zip(*figures, strict=True)))


def days_of(rows: Sequence[Sequence[Any]]) -> Sequence[DaySums]:
    """Read the rows of a query that `in_columns` made."""
    return [DaySums(day_ms, columns) for day_ms, *columns in rows]


def in_columns(dialect: str, sums: str) -> str:
    """A query with a row for each day, from one whose rows have `day_ms`, the names of a sum and `SUMMED`."""
    columns = ", ".join(_ARRAYS[dialect].format(column) for column in _COLUMNS)
    arrays = columns.format(array=_ARRAY[dialect])
    return f"SELECT s.day_ms, {arrays} FROM ({sums}) AS s GROUP BY s.day_ms"  # noqa: S608 (ours)


class Entities(NamedTuple):
    """All entities behind `after`, up to and including `last` if that is given, in the order of their names."""

    after: str
    last: str | None


class SumSource(Protocol):
    """Sums over a window: of one workspace, and of the first entity that the window names, if it names one."""

    async def totals(self, apart: Apart, slug: str | None = None) -> Sequence[DaySums]:
        """The sums of the window: of all entities together, or of the entity that it names.

        `apart`: only with an entity. `slug`: only its calls.
        """

    async def of_entities(self, entities: Entities, apart: Apart, slug: str | None = None) -> Sequence[DaySums]:
        """The sums of each of these entities. `slug`: only its calls."""

    async def of_listed(self, entities: Sequence[str], apart: Apart, slug: str | None = None) -> Sequence[DaySums]:
        """The same for the entities that are listed: by a look-up for each, whatever lies between them."""

    async def last_entity(self, after: str, sums: int) -> str | None:
        """The last entity to read at once, if a day should have about `sums` sums; None if no others follow."""
