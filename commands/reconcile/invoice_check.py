"""Compares an upstream's invoice with the events: sums per day and model, or call by call. Pure.

See docs/reference/reconciling.md#invoices.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from commands.errors import InvoiceError
from commands.reconcile.journal_check import Difference
from commands.records.billing_events import Event

FIGURES: Mapping[str, Callable[[Event], int]] = {
    "calls": lambda event: 1,
    "input": lambda event: event.input_tokens,
    "uncached_input": lambda event: event.uncached_input_tokens,
    "cached_input": lambda event: event.cached_input_tokens,
    "output": lambda event: event.output_tokens,
}
IDENTITIES = ("day", "model", "request_id")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}(?=$|[T ])")
_WHOLE = re.compile(r"\d{1,18}")
Identity = tuple[str, ...]
Sums = dict[Identity, list[int]]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of the CSV file. `by`: what a line is about; `figures`: what it sums."""

    by: Mapping[str, str]
    figures: Mapping[str, str]

    @classmethod
    def of(cls, text: str | None, header: Sequence[str]) -> "Columns":
        """Read `day=Date,model=Model,input=Tokens In`, or the columns' own names. Raises InvoiceError."""
        columns = _pairs(text) if text else {name: name for name in header}
        usable = {name: column for name, column in columns.items() if name in (*IDENTITIES, *FIGURES)}
        if text and (wrong := [*(set(columns) - set(usable)), *(set(columns.values()) - set(header))]):
            raise InvoiceError(
                f"--columns: {', '.join(sorted(wrong))}: neither a name ({', '.join((*IDENTITIES, *FIGURES))}) nor a"
                f" column of the file ({', '.join(header)})"
            )
        if twice := sorted(name for name in set(usable.values()) if header.count(name) > 1):
            raise InvoiceError(f"the column {', '.join(twice)} is there twice; which is meant is unknown")
        by = {name: usable[name] for name in IDENTITIES if name in usable}
        figures = {name: usable[name] for name in FIGURES if name in usable}
        if "request_id" in by:
            by = {"request_id": by["request_id"]}
        if not by or not figures:
            raise InvoiceError(
                f"the invoice needs a column of {', '.join(IDENTITIES)} and one of {', '.join(FIGURES)};"
                f" say which with --columns NAME=COLUMN,…. It has {', '.join(header) or 'none'}"
            )
        return cls(by, figures)


@dataclass(slots=True)
class InvoiceCheck:
    """Give it the rows and the events; then ask for the differences. `models`: what the invoice calls a slug's model;
    a slug that is not in it is left out. `days`: the first day of the window, and the first one after it."""

    columns: Columns
    models: Mapping[str, str]
    days: tuple[str, str]
    tolerance: Fraction = Fraction(0)
    """The part of the larger figure by which two figures may differ."""
    theirs: Sums = field(default_factory=dict)
    ours: Sums = field(default_factory=dict)
    rows_outside: int = 0
    events_left_out: int = 0

    def add_row(self, number: int, row: Mapping[str | None, str | None]) -> None:
        """Row `number` of the file. Raises InvoiceError. `csv` puts cells beyond the header under None."""
        if None in row:
            raise InvoiceError(f"row {number}: more cells than the header has; is a comma in a figure not quoted?")
        identity = tuple(_identity(name, row.get(column), number) for name, column in self.columns.by.items())
        if "day" in self.columns.by and not self.days[0] <= identity[0] < self.days[1]:
            self.rows_outside += 1
            return
        _add(
            self.theirs,
            identity,
            [_figure(row.get(column), column, number) for column in self.columns.figures.values()],
        )

    def add_event(self, event: Event) -> None:
        model = self.models.get(event.slug)
        if model is None:
            self.events_left_out += 1
            return
        parts = {"day": event.timestamp[:10], "model": model, "request_id": str(event.listed.get("requestId"))}
        identity = tuple(parts[name] for name in self.columns.by)
        _add(self.ours, identity, [FIGURES[name](event) for name in self.columns.figures])

    def differences(self) -> list[Difference]:
        """Lines that one side lacks, and figures that differ by more than the tolerance."""
        differences = []
        nothing = [0] * len(self.columns.figures)
        for identity in sorted(self.ours.keys() | self.theirs.keys()):
            ours = self.ours.get(identity, nothing)
            theirs = self.theirs.get(identity, nothing)
            for name, own, other in zip(self.columns.figures, ours, theirs, strict=True):
                if abs(own - other) > self.tolerance * max(own, other):
                    differences.append(Difference(f"invoice: {name}", " ".join(identity), str(own), str(other)))
        return differences

    def counts(self) -> dict[str, int]:
        lines = len(self.ours.keys() | self.theirs.keys())
        return {
            "invoice_lines": lines,
            "invoice_rows_outside_the_window": self.rows_outside,
            "events_left_out_of_the_invoice": self.events_left_out,
        }

    def totals(self) -> dict[str, dict[str, int]]:
        """The sums over everything, of events and invoice."""
        return {"events": self._total(self.ours), "invoice": self._total(self.theirs)}

    def _total(self, sums: Sums) -> dict[str, int]:
        return {name: sum(each[at] for each in sums.values()) for at, name in enumerate(self.columns.figures)}


Endpoints = Iterable[Mapping[str, Sequence[Mapping[str, str]]]]


def models_of(endpoints: Endpoints, provider: str | None, providers: Mapping[str, str]) -> dict[str, str]:
    """Return an upstream's name of each slug's model, by the endpoints as they are now.

    Only the provider's, whatever name it and the endpoints have for it. `providers`: the provider of each name; another
    name is one of its own.
    """
    own_name = None if provider is None else providers.get(provider, provider)
    targets = [(str(endpoint["slug"]), endpoint["targets"][0]) for endpoint in endpoints]
    return {
        slug: target.get("target_model") or slug
        for slug, target in targets
        if own_name is None or providers.get(target["provider"], target["provider"]) == own_name
    }


def _pairs(words: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in words.split(","):
        name, _, column = (part.strip() for part in text.partition("="))
        if pairs.setdefault(name, column) != column:
            raise InvoiceError(f"--columns: {name} is given twice, as {pairs[name]} and {column}")
    return pairs


def _identity(name: str, text: str | None, row: int) -> str:
    text = (text or "").strip()
    if name != "day":
        return text
    if (day := _DAY.match(text)) is None:
        raise InvoiceError(f"row {row}: {text!r} is no day; expected YYYY-MM-DD")
    return day.group()


def _figure(text: str | None, column: str, row: int) -> int:
    if _WHOLE.fullmatch((text or "").strip()) is None or not (text or "").isascii():
        raise InvoiceError(f"row {row}: {column} is {text!r}; expected a whole number without separators")
    return int(text or 0)


def _add(sums: Sums, identity: Identity, figures: Sequence[int]) -> None:
    before = sums.get(identity) or [0] * len(figures)
    sums[identity] = [one + more for one, more in zip(before, figures, strict=True)]
