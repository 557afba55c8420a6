"""Sums as reports read them, whether over events or over hourly sums.

Every sum is grouped by slug as well, because prices are per slug.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from policy.prices import Usage


class UsageSum(NamedTuple):
    """The sums of one slug's calls that share `external_entity_id` and `api_key_prefix`; "" where not grouped by."""

    external_entity_id: str
    api_key_prefix: str
    slug: str
    usage: Usage

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> "UsageSum":
        """From the names, then calls, input, output and cached input. PostgreSQL's sums are decimal numbers."""
        entity, key, slug, *figures = row
        return cls(entity, key, slug, Usage(*map(int, figures)))


class DaySum(NamedTuple):
    """The sums of one key's calls to one slug in the UTC day that begins at `day_ms`."""

    day_ms: int
    api_key_prefix: str
    slug: str
    usage: Usage

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> "DaySum":
        day_ms, *rest = row
        found = UsageSum.of_row(("", *rest))
        return cls(day_ms, found.api_key_prefix, found.slug, found.usage)


class UsageSource(Protocol):
    """Sums over a window: of one workspace, and of the first entity that the window names, if it names one."""

    async def totals(self, by_key: bool, slug: str | None = None) -> Sequence[UsageSum]:
        """The sums of the window: of all entities together, or of the entity that it names.

        `by_key`: of each key by itself; only with an entity. `slug`: only its calls.
        """

    async def of_entities(self, entities: Sequence[str], by_key: bool, slug: str | None = None) -> Sequence[UsageSum]:
        """The sums of each of these entities. `slug`: only its calls."""

    async def by_day(self) -> Sequence[DaySum]:
        """The sums of the one entity that the window names, by day, key and slug."""

    async def entities_after(self, after: str, limit: int) -> Sequence[str]:
        """The next `limit` entities that may have calls in the window, in order."""
