"""Counts work in a way that no processor changes: lines and calls of Python, and what C does with texts behind them.

C code joins, copies and compares texts in one bytecode whatever their size. So the texts of an input are `CountedText`
and `CountedBytes`, which count the bytes that joining copies and the comparisons that a search makes.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from types import FrameType
from typing import Any

SIZES = (1_000, 2_000, 4_000, 8_000)
MOST_PER_DOUBLING = 3.0


@dataclass(slots=True)
class Work:
    """The counted work: lines run, bytes copied, bytes compared."""

    lines: int = 0
    copied: int = 0
    compared: int = 0


_now = Work()


class CountedText(str):
    """Text that counts in `_now`."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __add__(self, other: str) -> "CountedText":
        _now.copied += len(self) + len(other)
        return CountedText(str(self) + str(other))

    def __radd__(self, other: str) -> "CountedText":
        _now.copied += len(self) + len(other)
        return CountedText(str(other) + str(self))

    def __eq__(self, other: object) -> bool:
        _now.compared += 1
        return str.__eq__(self, other)


class CountedBytes(bytes):
    """Bytes that count in `_now`."""

    __hash__ = bytes.__hash__

    def __add__(self, other: Any) -> "CountedBytes":
        _now.copied += len(self) + len(other)
        return CountedBytes(bytes(self) + bytes(other))

    def __radd__(self, other: Any) -> "CountedBytes":
        _now.copied += len(self) + len(other)
        return CountedBytes(bytes(other) + bytes(self))


def counted(value: Any) -> Any:
    """A JSON value whose texts count."""
    if isinstance(value, str):
        return CountedText(value)
    if isinstance(value, list):
        return [counted(item) for item in value]
    if isinstance(value, dict):
        return {name: counted(item) for name, item in value.items()}
    return value


def work_of(act: Callable[[], object]) -> Work:
    """The work that `act` does."""
    _now.lines = _now.copied = _now.compared = 0

    def trace(_frame: FrameType, _event: str, _arg: object) -> Callable[..., Any]:
        _now.lines += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return Work(_now.lines, _now.copied, _now.compared)


def check_grows_linearly(prepare: Callable[[int], Callable[[], object]]) -> None:
    """Assert that the work on `prepare(n)` grows at most threefold where n doubles."""
    works = [work_of(prepare(size)) for size in SIZES]
    for less, more in pairwise(works):
        for name in ("lines", "copied", "compared"):
            few = getattr(less, name)
            many = getattr(more, name)
            assert many <= MOST_PER_DOUBLING * max(few, SIZES[0]), f"{name}: {[getattr(one, name) for one in works]}"
