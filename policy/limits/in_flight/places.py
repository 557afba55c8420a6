"""Places of calls in flight, for limits of CONCURRENT_REQUEST: one field of a hash per counting group. Pure.

The field has an entry per worker incarnation. A take adds the calls that it admits; the worker itself says at each
call's end, and every few seconds, how many it has in flight. The reference for `policy/limits/in_flight/places.lua`.

See docs/reference/limits.md#calls-in-flight.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

RENEWAL_S = 4.0
"""The time between two renewals of a worker, and of its supervisor's for it: twice in 10 s."""
SILENT_MS = 60_000
"""Places of an incarnation count for so long after its last word, or its supervisor's."""
FORGOTTEN_MS = 3_600_000
"""An entry that was not renewed for so long is dropped."""
RETRY_MS = 1_000
"""`Retry-After` of a refusal: a place becomes free whenever a call ends."""

_TIME_BYTES = 6
_VERSION_BYTES = 6
_HELD_BYTES = 4
_COUNT_BYTES = 2
_ADMITTED_BYTES = 3


@dataclass(frozen=True, slots=True)
class HeldPlaces:
    """The places of one incarnation. `calls`: what it said last, in its word with the number `version`.

    `takes`: number and admitted calls of takes whose answers it had not got then.
    """

    renewed_ms: int = 0
    version: int = 0
    calls: int = 0
    takes: tuple[tuple[int, int], ...] = ()

    @property
    def count(self) -> int:
        return self.calls + sum(admitted for _, admitted in self.takes)

    def with_take(self, number: int, answered: int, admitted: int) -> "HeldPlaces":
        """Adds what a take admits. Those up to `answered` are one from now on: the next word includes them all."""
        answered_takes = [one for one in self.takes if one[0] <= answered]
        merged = ((answered_takes[-1][0], sum(count for _, count in answered_takes)),) if answered_takes else ()
        later = self.takes[len(answered_takes) :]
        return replace(self, takes=(*merged, *later, (number, admitted)))

    def said(self, version: int, answered: int, calls: int) -> "HeldPlaces":
        """Replace the count by the incarnation's word, which includes all takes up to `answered`."""
        later = tuple(one for one in self.takes if one[0] > answered)
        return replace(self, version=version, calls=calls, takes=later)


NO_CALLS = HeldPlaces()


@dataclass(frozen=True, slots=True)
class Places:
    """The places of one group. `last_ms`: their own time when they were last written; `ahead_ms`: how far it is ahead
    of Redis' clock. That time never goes back."""

    last_ms: int = 0
    ahead_ms: int = 0
    entries: Mapping[str, HeldPlaces] = field(default_factory=dict)

    def at(self, clock_ms: int) -> "Places":
        """Brings them to the clock's time, and drops what was not renewed for long."""
        now_ms = max(clock_ms + self.ahead_ms, self.last_ms)
        live = {name: one for name, one in self.entries.items() if now_ms - one.renewed_ms <= FORGOTTEN_MS}
        return Places(now_ms, now_ms - clock_ms, live)

    def used(self, incarnation: str) -> int:
        """The places that count when this incarnation asks: its own, and others' that are not silent."""
        return sum(
            one.count
            for name, one in self.entries.items()
            if name == incarnation or self.last_ms - one.renewed_ms <= SILENT_MS
        )

    def entry(self, incarnation: str) -> HeldPlaces:
        return self.entries.get(incarnation) or NO_CALLS

    def with_entry(self, incarnation: str, entry: HeldPlaces) -> "Places":
        """Renew an incarnation's entry, which is now the last one."""
        others = {name: one for name, one in self.entries.items() if name != incarnation}
        return replace(self, entries={**others, incarnation: replace(entry, renewed_ms=self.last_ms)})

    def without(self, incarnation: str) -> "Places":
        return replace(self, entries={name: one for name, one in self.entries.items() if name != incarnation})


NO_PLACES = Places()


class Says(Enum):
    """The contents of a word on an incarnation's calls in flight: how many it has, that it lives, that it has ended."""

    HOLDS = 0
    LIVES = 1
    GONE = 2


class Word(NamedTuple):
    """A word on an incarnation's calls in flight. Only it says itself what it holds.

    `version`: rises with each word of its own; 0 if its supervisor says it. `answered`: what takes up to this number
    have admitted is counted in it.
    """

    says: Says
    version: int = 0
    answered: int = 0

    @property
    def is_own(self) -> bool:
        """True if it says what the incarnation holds. An older one that comes late changes nothing."""
        return self.says is Says.HOLDS or (self.says is Says.GONE and self.version > 0)


def hear(places: dict[str, Places], incarnation: str, word: Word, calls: Mapping[str, int], clock_ms: int) -> int:
    """Apply a word to the places of some groups of a hash. Returns in how many it changed an entry.

    `calls`: by group, the calls in flight.
    """
    changes = 0
    for group, count in calls.items():
        its_places = places.get(group, NO_PLACES).at(clock_ms)
        entry = its_places.entries.get(incarnation)
        if word.is_own:
            before = entry or NO_CALLS
            if word.version <= before.version or (entry is None and word.says is Says.GONE):
                continue
            entry = before.said(word.version, word.answered, count)
        if entry is not None:
            is_over = word.says is Says.GONE and not (word.is_own and entry.takes)
            places[group] = its_places.without(incarnation) if is_over else its_places.with_entry(incarnation, entry)
            changes += 1
    return changes


def calls_in_flight(stored: bytes | None, clock_ms: int) -> int:
    """The places that count when Redis' clock shows `clock_ms`. `stored`: a group's `places_field`."""
    if not stored:
        return 0
    return unpacked(stored).at(clock_ms).used("")


def unpacked(stored: bytes) -> Places:
    """Read a field."""
    numbers = _Reader(stored)
    last_ms = numbers.next(_TIME_BYTES)
    ahead_ms = numbers.next(_TIME_BYTES)
    return Places(last_ms, ahead_ms, dict(_entries(numbers)))


def _entries(numbers: "_Reader") -> Iterator[tuple[str, HeldPlaces]]:
    while numbers.has_more:
        name = numbers.text(numbers.next(1))
        renewed_ms = numbers.next(_TIME_BYTES)
        version = numbers.next(_VERSION_BYTES)
        calls = numbers.next(_HELD_BYTES)
        count = numbers.next(_COUNT_BYTES)
        takes = tuple((numbers.next(_VERSION_BYTES), numbers.next(_ADMITTED_BYTES)) for _ in range(count))
        yield name, HeldPlaces(renewed_ms, version, calls, takes)


class _Reader:
    """Reads little-endian numbers and texts in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def has_more(self) -> bool:
        return self._at < len(self._data)

    def next(self, width: int) -> int:
        return int.from_bytes(self._piece(width), "little")

    def text(self, length: int) -> str:
        return self._piece(length).decode()

    def _piece(self, length: int) -> bytes:
        start = self._at
        self._at += length
        return self._data[start : self._at]
