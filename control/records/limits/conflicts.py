"""Limits that the limits of other groups of their tree forbid, as errors explain them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A group of the same tree, as an error names it."""

    id: str
    external_entity_id: str
    name: str | None


@dataclass(frozen=True, slots=True)
class LimitConflict:
    """A limit of a request, and the other group's limit that forbids it, of the same slug, type and unit.

    `field`: its path in the request. `is_above`: it is above that of a group above; else it is below that of a group
    below. Amounts of spend limits are decimal text, with a `currency`.
    """

    field: str
    threshold: int | str
    other: int | str
    group: Neighbour
    is_above: bool
    type: str
    unit: str
    slug: str | None = None
    currency: str | None = None

    @property
    def maximum(self) -> int | str | None:
        """The largest threshold that passes. None: there is no bound, or a smallest one."""
        return self.other if self.is_above else None

    @property
    def minimum(self) -> int | str | None:
        """The smallest threshold that passes."""
        return None if self.is_above else self.other

    @property
    def message(self) -> str:
        """The sentence for people: what conflicts with what, and what would be allowed."""
        what = "spend" if self.slug is None else f"{self.slug} {self.type}"
        subject = f"{what} per {self.unit}: {self._text(self.threshold)}"
        place, bound, remedy = ("above", "at most", "raise") if self.is_above else ("below", "at least", "lower")
        other = self._text(self.other)
        return (
            f"{subject} is {place} the {other} of {self.group.external_entity_id}, a group {place} this one."
            f" Choose {bound} {other}, or {remedy} it there first"
        )

    def _text(self, threshold: int | str) -> str:
        return f"{threshold}" if self.currency is None else f"{threshold} {self.currency}"
