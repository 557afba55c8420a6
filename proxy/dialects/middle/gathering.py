"""Gathers the text of a stream, within a bound, for events that repeat all of it.

Pure. The bound keeps an upstream from filling the worker's memory.
"""

import re

from proxy.errors import UpstreamCutError

MAX_GATHERED_CHARS = 16 << 20
"""Most characters of one answer, in all its gathered texts."""

_SIGNIFICANT = re.compile(r'["\\{}\[\]]')


class Budget:
    """Number of characters of one answer that may still be gathered; shared by all its texts."""

    __slots__ = ("_remainder",)

    def __init__(self, most: int = MAX_GATHERED_CHARS) -> None:
        self._remainder = most

    def spend(self, chars: int) -> None:
        """Raises `UpstreamCutError` above the bound."""
        self._remainder -= chars
        if self._remainder < 0:
            raise UpstreamCutError("the answer is too large to translate")


class Gathered:
    """A text that arrives in pieces."""

    __slots__ = ("_budget", "_pieces")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        self._budget.spend(len(piece))
        self._pieces.append(piece)

    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""


class ObjectProgress:
    """Tells when the pieces of a JSON object are the whole object. Looks at each character once."""

    __slots__ = ("_depth", "_escaped", "_in_string", "is_complete")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.is_complete = False
        """True if an object began and ended."""

    def add(self, piece: str) -> None:
        start = 0
        if self._escaped and piece:
            self._escaped = False
            start = 1
        while (match := _SIGNIFICANT.search(piece, start)) is not None:
            start = match.end()
            character = match.group()
            if character == "\\":
                if self._in_string:
                    self._escaped = start == len(piece)
                    start += 1
            elif character == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += 1 if character in "{[" else -1
                self.is_complete = self._depth == 0
