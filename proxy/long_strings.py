"""Reads JSON whose bulk is a few long strings, as a prompt with a document or a picture is; means what orjson means.

Pure. A parser looks at a string byte by byte, and makes a copy of it that nobody asks for. Where it is plain ASCII,
what may not stand in it is asked of the whole string at once; then a stand-in is parsed, and edited, in its place.
"""

import re
import secrets
from collections.abc import Iterator
from typing import Any

import orjson

from proxy.spliced import Spliced

LONG_BYTES = 16 << 10
"""A string from here on is read by itself; a text of less than two such is parsed as it is."""
SHORT_STRINGS = 64
"""After more than these, going from string to string is no longer the faster way."""
PROBE_BYTES = 2 << 10
"""So much of a string shows whether it is worth the look: prose has a line's end in it, or a letter beyond ASCII."""
PIECE = 1 << 16
"""Characters looked at together: what is made of them to tell stays in the cache, and is no second body in memory."""

BULK = frozenset(("messages", "input", "prompt", "system", "instructions", "tools"))
"""The members of a request that hold its long strings, and that nobody reads unless the request is told anew."""
_DIGITS = 5

_QUOTE = b'"'
_BACKSLASH = b"\\"
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class Outline:
    """A JSON text in which each long plain string has a stand-in: `text`."""

    __slots__ = ("_name", "_raw", "_spans", "text")

    def __init__(self, raw: bytes, spans: list[tuple[int, int]]) -> None:
        self._raw = raw
        self._spans = spans
        self._name = secrets.token_hex(16).encode()  # no text can hold it
        rest: list[bytes] = []
        done = 0
        for number, (start, end) in enumerate(spans):
            rest += raw[done:start], b"%b%0*d" % (self._name, _DIGITS, number)
            done = end
        self.text = b"".join((*rest, raw[done:]))

    def stands_in(self, parsed: dict[str, Any]) -> bool:
        """Whether no stand-in is in `parsed`, which is what `text` says, but in the members that hold the bulk."""
        try:
            return self._name not in orjson.dumps({name: parsed[name] for name in parsed.keys() - BULK})
        except orjson.JSONEncodeError:  # nested deeper than it writes
            return False

    def whole(self) -> dict[str, Any]:
        """The request without stand-ins."""
        parsed: dict[str, Any] = orjson.loads(self._raw)
        return parsed

    def original(self, text: str) -> memoryview | None:
        """The long string, all of it ASCII, that `text` stands in for; None where it stands for itself."""
        name = self._name.decode()
        if not text.startswith(name):
            return None
        start, end = self._spans[int(text[len(name) :])]
        return memoryview(self._raw)[start:end]

    def filled(self, text: bytes) -> Spliced:
        """`text`, made of this one's, with the long strings in their places again."""
        head, *rest = text.split(self._name)
        parts: list[bytes | memoryview] = [head]
        view = memoryview(self._raw)
        for piece in rest:
            start, end = self._spans[int(piece[:_DIGITS])]
            parts += view[start:end], piece[_DIGITS:]
        return Spliced(*parts)


def read(raw: bytes) -> tuple[Any, Outline | None]:
    """What `orjson.loads` makes of `raw`, or raises. With an outline, BULK has stand-ins for its long strings."""
    spans = [] if len(raw) < 2 * LONG_BYTES else [span for span in _long_strings(raw) if _is_plain(raw, *span)]
    if 2 * sum(end - start for start, end in spans) > len(raw):
        outline = Outline(raw, spans)
        parsed = orjson.loads(outline.text)
        if isinstance(parsed, dict) and outline.stands_in(parsed):
            return parsed, outline
    return orjson.loads(raw), None


def _long_strings(raw: bytes) -> Iterator[tuple[int, int]]:
    """Where the inside of each long string begins and ends. As far as `raw` is JSON, its strings are found as here."""
    at, short = raw.find(_QUOTE), 0
    while at >= 0 and short < SHORT_STRINGS:
        end = _end(raw, at)
        if end < 0:
            return
        if end - at > LONG_BYTES:
            yield at + 1, end
        else:
            short += 1
        at = raw.find(_QUOTE, end + 1)


def _end(raw: bytes, start: int) -> int:
    """Where the quote stands that ends the string that begins at `start`; -1 where that takes a look at each byte."""
    end = raw.find(_QUOTE, start + 1)
    if end < 0 or raw[end - 1] != _BACKSLASH[0]:
        return end
    match = _STRING.match(raw, start, start + PROBE_BYTES)
    return match.end() - 1 if match else -1


def _is_plain(raw: bytes, start: int, end: int) -> bool:
    """Whether no escape is inside a string, nothing beyond ASCII, and nothing that JSON forbids."""
    view = memoryview(raw)
    done, size = start, PROBE_BYTES
    while done < end:
        try:
            piece = str(view[done : min(done + size, end)], "ascii")
        except UnicodeDecodeError:
            return False
        if len(orjson.dumps(piece)) != len(piece) + 2:  # it wrote an escape, as for any control character
            return False
        done += size
        size = PIECE
    return True
