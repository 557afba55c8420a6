"""Reads JSON whose bulk is a few long strings, as a prompt with a document or a picture is; means what orjson means.

Pure. A parser looks at a string byte by byte, and makes a copy of it that nobody asks for. Where it is plain ASCII,
what may not stand in it is asked of the whole string at once; then a placeholder is parsed, and edited, in its place.
`sliced_json.py` does the same for texts that would hold the event loop.
"""

import re
import secrets
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any

import orjson

from proxy.json_text.json_bounds import is_surely_within_bounds
from proxy.json_text.segmented_body import DIGITS, Filled, Part, Source

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
MAX_SPELLED_OUT = 10_000
"""Placeholders that are undone at once."""

_HEADS, _HEAD_BYTES = b"dh", 128

_QUOTE = b'"'
_BACKSLASH = b"\\"
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class Outline:
    """A JSON text in which each long string has a placeholder: `text`, once it is closed.

    A placeholder keeps the string's first bytes where a translation looks at them, as it does at a URL's scheme.
    """

    __slots__ = ("_done", "_source", "_written", "keys", "text")

    def __init__(self, raw: bytes) -> None:
        self.text = b""
        self.keys: list[tuple[int, int]] = []
        """Where each key of the outermost object begins and ends in the original, if all of that was walked."""
        self._source = Source(raw, secrets.token_urlsafe(12).encode())  # no text can hold this name
        self._written = BytesIO()  # it grows as it is walked, so that nothing is left to join
        self._done = 0

    def add(self, start: int, end: int) -> None:
        """The inside of a long string, which was checked. In the order of the text; less than 10 ** DIGITS of them."""
        source, written = self._source, self._written
        raw, starts = source.text, source.starts
        if raw[start] in _HEADS:
            start += _head_bytes(raw[start : min(start + _HEAD_BYTES, end)])
        written.write(raw[self._done : start])
        written.write(b"%b%0*d" % (source.name, DIGITS, len(starts)))
        starts.append(start)
        source.sizes.append(end - start)
        self._done = end

    def close(self) -> None:
        self._written.write(self._source.text[self._done :])
        self.text = self._written.getvalue()

    def is_in(self, value: object) -> bool:
        """Whether a placeholder is in a value that was parsed from `text`, as far as it can be written."""
        try:
            return self._source.name in orjson.dumps(value)
        except orjson.JSONEncodeError:  # nested deeper than it writes
            return True

    def parts_of(self, texts: Iterable[str], most: int) -> Iterator[str | Part]:
        """Strings that were parsed from `text`, or some of its JSON, as they were sent: bytes stood so in JSON.

        In parts; no more than the first `most` of them mean that.
        """
        source, name = self._source, self._source.name.decode()
        view, starts, sizes = memoryview(source.text), source.starts, source.sizes
        for text in texts:
            head, *marked = text.split(name, most)
            if head:
                yield head
            for piece in marked:
                span = int(piece[:DIGITS])
                yield view[starts[span] : starts[span] + sizes[span]]
                if len(piece) > DIGITS:
                    yield piece[DIGITS:]

    def filled(self, text: bytes) -> Filled:
        """`text`, made of this one's, with the long strings in their places again."""
        return Filled(text, self._source)

    def spelled_out(self, text: bytes, max_bytes: int) -> bytes:
        """`filled`, at once. Raises ValueError where that takes more bytes, or too many long strings."""
        count, filled = text.count(self._source.name), self.filled(text)
        if count > MAX_SPELLED_OUT or len(filled) > max_bytes:
            raise ValueError(f"more than {max_bytes} bytes or {MAX_SPELLED_OUT} long strings")
        return bytes(filled) if count else text

    def whole(self, value: Any, max_bytes: int) -> Any:
        """`value` without placeholders. Raises what `spelled_out` does."""
        try:
            text = orjson.dumps(value)
        except orjson.JSONEncodeError:  # nested deeper than it writes: nobody reads that
            return value
        whole = self.spelled_out(text, max_bytes)
        return value if whole is text else orjson.loads(whole)


def read(raw: bytes) -> tuple[Any, Outline | None] | None:
    """What `orjson.loads` makes of `raw`, or raises. With an outline, BULK has placeholders for its long strings.

    None for what may hold too much to be parsed at once; what is inside a long string does not count.
    """
    spans = [] if len(raw) < 2 * LONG_BYTES else [span for span in _long_strings(raw) if _is_plain(raw, *span)]
    if 2 * sum(end - start for start, end in spans) > len(raw):
        outline = Outline(raw)
        for start, end in spans:
            outline.add(start, end)
        outline.close()
        if is_surely_within_bounds(outline.text):
            parsed = orjson.loads(outline.text)
            if isinstance(parsed, dict) and not outline.is_in({name: parsed[name] for name in parsed.keys() - BULK}):
                return parsed, outline
    return (orjson.loads(raw), None) if is_surely_within_bounds(raw) else None


def is_plain(piece: memoryview) -> bool:
    """Whether no escape is inside part of a string, nothing beyond ASCII, and nothing that JSON forbids."""
    try:
        text = str(piece, "ascii")
    except UnicodeDecodeError:
        return False
    return len(orjson.dumps(text)) == len(text) + 2  # else it wrote an escape, as for any control character


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
    view = memoryview(raw)
    done, size = start, PROBE_BYTES
    while done < end:
        if not is_plain(view[done : min(done + size, end)]):
            return False
        done += size
        size = PIECE
    return True


def _head_bytes(text: bytes) -> int:
    """How much of a string's beginning is looked at by a translation: what is before the data of a data URL, a scheme.

    It ends with a byte that can only end an escape.
    """
    if text.startswith(b"data:"):
        return text.find(b",") + 1
    return text.find(b"/", text.find(b"/", 0, 16) + 1) + 1 if text.startswith(b"http") else 0
