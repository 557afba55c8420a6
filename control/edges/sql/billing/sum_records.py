"""Sums as reports read them, whether over events or over hourly sums.

Every sum is grouped by slug as well, because prices are per slug.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from control.time_slices import pause
from policy.prices import Usage

SUMS_AT_ONCE = 16
"""Sums that are read or added up between two pauses: 50 µs."""


class UsageSum(NamedTuple):
    """The sums of one slug's calls that share the other names: 0 or "" where sums are not grouped by them.

    `day_ms`: when the UTC day begins.
    """

    day_ms: int
    external_entity_id: str
    api_key_prefix: str
    slug: str
    usage: Usage

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> "UsageSum":
        """From the names, then calls, input, output and cached input. PostgreSQL's sums are decimal numbers."""
        day_ms, entity, key, slug, calls, input, output, cached_input = row
        usage = Usage(calls=calls, input=int(input), output=int(output), cached_input=int(cached_input))
        return cls(day_ms, entity, key, slug, usage)


async def sums_of(rows: Sequence[Sequence[Any]]) -> Sequence[UsageSum]:
    """The sums that these rows hold, read in slices: a page may have very many of them."""
    found: list[UsageSum] = []
    for start in range(0, len(rows), SUMS_AT_ONCE):
        await pause()
        found += map(UsageSum.of_row, rows[start : start + SUMS_AT_ONCE])
    return found


class UsageSource(Protocol):
    """Sums over a window: of one workspace, and of the first entity that the window names, if it names one."""

    async def totals(self, by_day: bool, by_key: bool, slug: str | None = None) -> Sequence[UsageSum]:
        """The sums of the window: of all entities together, or of the entity that it names.

        `by_day`: of each day by itself. `by_key`: of each key by itself; only with an entity. `slug`: only its calls.
        """

    async def of_entities(self, entities: Sequence[str], by_key: bool, slug: str | None = None) -> Sequence[UsageSum]:
        """The sums of each of these entities: neighbours, in order, as `entities_after` gives them. `slug`: only its
        calls."""

    async def entities_after(self, after: str, limit: int) -> Sequence[str]:
        """The next `limit` entities that may have calls in the window, in order."""
