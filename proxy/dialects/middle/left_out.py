"""Names what a translation left out, for the header `x-tollgate-left-out` or a stream's comment of that name.

Pure. Names of members and kinds of blocks come from the upstream: they are cut to characters that a header field holds.
"""

import re
from collections.abc import Sequence

HEADER = "x-tollgate-left-out"
MAX_NAMED = 20
"""The most things that are named; of the others, only the number is told."""
_MAX_KEPT = 1_000
_MAX_CHARS = 96
_OTHER = re.compile(r"[^A-Za-z0-9_.-]")


class LeftOut:
    """Parts of an answer for which its caller's dialect has no place: paths in the target's answer, each once."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def add(self, path: str, kind: str = "") -> None:
        """`kind`: the type of the block or item at this path."""
        if len(self._names) < _MAX_KEPT:
            self._names[f"{_harmless(path)} ({_harmless(kind)})" if kind else _harmless(path)] = None

    @property
    def names(self) -> list[str]:
        return list(self._names)


def _harmless(name: str) -> str:
    return _OTHER.sub("_", name[:_MAX_CHARS])


def header_value(names: Sequence[str]) -> str:
    """The value of the header."""
    more = len(names) - MAX_NAMED
    return f"{', '.join(names[:MAX_NAMED])}{f' and {more} more' if more > 0 else ''}"


def stream_comment(names: Sequence[str]) -> bytes:
    """An SSE comment that says the same; empty if nothing was left out."""
    return f": {HEADER}: {header_value(names)}\n\n".encode() if names else b""
