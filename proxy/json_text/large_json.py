"""Parses JSON whose bulk is a few long strings, such as a prompt with a document or an image; accepts what orjson does.

Pure. Each long string of plain ASCII is validated by itself, in passes over the whole string; the parser and the editor
see a short placeholder instead. orjson would scan the string byte by byte and make a copy that nobody reads.
`sliced_json.py` does the same for texts that would block the event loop.
"""

import re
import secrets
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any

import orjson

from proxy.json_text.json_bounds import SMALL_BYTES, holds_few_values, is_surely_within_bounds
from proxy.json_text.segmented_body import DIGITS, PlaceholderSpans, RestoredBody, Segment, SegmentedBody

LONG_BYTES = 16 << 10
"""Strings longer than this get a placeholder; a text shorter than two of them is parsed as it is."""
MOST_STEPS = 64
"""Stop the search for long strings after this many steps: walking from string to string is then the slower way."""
PROBE_BYTES = 2 << 10
"""The first check covers this much of a string: prose usually has a line feed or a non-ASCII letter in it."""
TAIL_BYTES = 2 << 10
"""A text's only long string mostly ends this near to the end of the text."""
CHECKED_BYTES = 128 << 10
"""Bytes validated at a time, so that the intermediate copies stay in the CPU's cache."""

BULK = frozenset(("messages", "input", "prompt", "system", "instructions", "tools"))
"""Members of a request that hold its long strings. Nothing reads those strings unless the request is translated."""
MAX_RESTORED_PLACEHOLDERS = 10_000
"""Most placeholders that are restored in one step."""
FEW_SPANS = 32
"""Segments of a body with at most this many placeholders are computed once and kept."""

_HEADS = b"dh"
_HEAD_BYTES = 128

Span = tuple[int, int]
"""Start and end, in bytes."""

_QUOTE = b'"'
_BACKSLASH = ord("\\")
_PLAIN_STRINGS = re.compile(rb'(?:[^"]{0,99}+"[^"\\]{0,99}+"){0,8}')
"""The next short strings without escapes, up to eight of them. They are passed over in one step."""
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class Outline:
    """A JSON text with a placeholder for each long string. `text` is that text, once `finish` was called.

    A placeholder follows the string's first bytes where a translation reads them: the scheme of a URL.
    """

    __slots__ = ("_copied_to", "_output", "_spans", "key_spans", "text")

    def __init__(self, raw: bytes) -> None:
        self.text = b""
        self.key_spans: list[tuple[int, int]] = []
        """Start and end of each key of the outermost object in the original; empty if that was not walked."""
        self._spans = PlaceholderSpans(raw, secrets.token_hex(12).encode(), [], [])  # no caller can foresee the marker
        self._output = BytesIO()
        self._copied_to = 0

    def add_placeholder(self, start: int, end: int) -> None:
        """Put a placeholder in the place of `raw[start:end]`, the validated inside of a long string.

        Call it in the order of the text, and fewer than 10 ** DIGITS times.
        """
        spans = self._spans
        buffer = self._output
        raw = spans.text
        starts = spans.starts
        if raw[start] in _HEADS:
            start += _head_bytes(raw[start : min(start + _HEAD_BYTES, end)])
        buffer.write(raw[self._copied_to : start])
        buffer.write(b"%b%0*d" % (spans.marker, DIGITS, len(starts)))
        starts.append(start)
        spans.sizes.append(end - start)
        self._copied_to = end

    def finish(self) -> bytes:
        """Complete `text`, and return it."""
        self._output.write(self._spans.text[self._copied_to :])
        self.text = self._output.getvalue()
        return self.text

    def appears_in(self, value: object) -> bool:
        """Return whether a value parsed from `text` holds a placeholder. True for too deep a value."""
        try:
            return self._spans.marker in orjson.dumps(value)
        except orjson.JSONEncodeError:
            return True

    def original_segments(self, texts: Iterable[str], most: int) -> Iterator[str | Segment]:
        """Yield strings parsed from `text` with their long strings restored. Bytes are in their escaped JSON form.

        Each text comes in several segments. Only its first `most` placeholders are restored.
        """
        spans = self._spans
        marker = self._spans.marker.decode()
        view = memoryview(spans.text)
        starts = spans.starts
        sizes = spans.sizes
        for text in texts:
            head, *marked = text.split(marker, most)
            if head:
                yield head
            for piece in marked:
                span = int(piece[:DIGITS])
                yield view[starts[span] : starts[span] + sizes[span]]
                if len(piece) > DIGITS:
                    yield piece[DIGITS:]

    def restored_body(self, text: bytes) -> SegmentedBody:
        """`text`, which was made from `self.text`, with the long strings back in their places."""
        spans = self._spans
        starts = spans.starts
        sizes = spans.sizes
        if len(starts) > FEW_SPANS:
            return RestoredBody(text, spans)
        view = memoryview(spans.text)
        (before, *marked) = text.split(spans.marker)
        segments: list[Segment] = [before]
        for piece in marked:
            span = int(piece[:DIGITS])
            segments += view[starts[span] : starts[span] + sizes[span]], piece[DIGITS:]
        return SegmentedBody(*segments)

    def restored_text(self, text: bytes, max_bytes: int) -> bytes:
        """`restored_body` as bytes. Raises ValueError above `max_bytes` or `MAX_RESTORED_PLACEHOLDERS`."""
        count = text.count(self._spans.marker)
        if not count and len(text) <= max_bytes:
            return text
        restored = self.restored_body(text)
        if count > MAX_RESTORED_PLACEHOLDERS or len(restored) > max_bytes:
            raise ValueError(f"more than {max_bytes} bytes or {MAX_RESTORED_PLACEHOLDERS} long strings")
        return bytes(restored)

    def restored_value(self, value: Any, max_bytes: int) -> Any:
        """`value` with its long strings restored. Raises ValueError as `restored_text` does."""
        try:
            text = orjson.dumps(value)
        except orjson.JSONEncodeError:  # nested too deeply to serialize: no stage reads such a value
            return value
        restored = self.restored_text(text, max_bytes)
        return value if restored is text else orjson.loads(restored)


def parse_with_placeholders(raw: bytes) -> tuple[Any, Outline | None] | None:
    """Parse `raw` in one step. With an outline, members in `BULK` hold placeholders for their long strings.

    Returns None if the text may hold too much to parse in one step; the inside of a long string does not count.
    Raises `orjson.JSONDecodeError`.
    """
    long = plain = _only_long_string(raw) if len(raw) >= 2 * LONG_BYTES else []
    if not long and len(raw) >= 2 * LONG_BYTES:
        long = _long_strings(raw)
        plain = [span for span in long if _is_plain(raw, *span)]
    if plain:
        outline = Outline(raw)
        for start, end in plain:
            outline.add_placeholder(start, end)
        text = outline.finish()
        if 2 * len(text) < len(raw) and is_surely_within_bounds(text):
            parsed = orjson.loads(text)
            if isinstance(parsed, dict):
                others = {name: parsed[name] for name in parsed.keys() - BULK}
                if not outline.appears_in(others):
                    return parsed, outline
    is_within = len(raw) <= SMALL_BYTES or holds_few_values(_outside(raw, long))
    return (orjson.loads(raw), None) if is_within else None


def is_plain(piece: memoryview) -> bool:
    """Return whether part of a string is ASCII without escapes and without the control characters that JSON forbids."""
    try:
        text = str(piece, "ascii")
    except UnicodeDecodeError:
        return False
    return len(orjson.dumps(text)) == len(text) + 2  # longer if orjson had to escape anything


def _outside(raw: bytes, spans: list[Span]) -> bytes:
    """The text without these spans of it."""
    if not spans:
        return raw
    ends = (0, *(end for _, end in spans))
    return b"".join(raw[end:start] for end, (start, _) in zip(ends, (*spans, (len(raw), 0)), strict=True))


def _only_long_string(raw: bytes) -> list[Span]:
    """Start and end of the inside of a plain string that fills the text; empty if there is none, or it is not found.

    Relies on `raw` being JSON. Nothing looks for the string's end: it holds no quote if it is plain.
    """
    start = raw.find(_QUOTE, _PLAIN_STRINGS.match(raw).end()) + 1  # type: ignore[union-attr]  # it always matches
    end = raw.find(_QUOTE, len(raw) - TAIL_BYTES)
    return [(start, end)] if start and end - start > LONG_BYTES and _is_plain(raw, start, end) else []


def _long_strings(raw: bytes) -> list[Span]:
    """Start and end of the inside of each long string. Relies on `raw` being JSON."""
    spans = []
    find = raw.find
    at = 0
    for _ in range(MOST_STEPS):
        start = find(_QUOTE, _PLAIN_STRINGS.match(raw, at).end())  # type: ignore[union-attr]  # matches everywhere
        end = find(_QUOTE, start + 1)
        if raw[end - 1] == _BACKSLASH:
            end = _closing_quote(raw, start)
        if start < 0 or end < 0:
            break
        if end - start > LONG_BYTES:
            spans.append((start + 1, end))
        at = end + 1
    return spans


def _closing_quote(raw: bytes, start: int) -> int:
    """Offset of the quote that closes a string with escaped quotes; -1 if it is not near."""
    match = _STRING.match(raw, start, start + PROBE_BYTES)
    return match.end() - 1 if match else -1


def _is_plain(raw: bytes, start: int, end: int) -> bool:
    """`is_plain` for a part of a text, in pieces."""
    inside = memoryview(raw)
    stop = (start + PROBE_BYTES) & -8  # words are decoded twice as fast where they are aligned
    while is_plain(inside[start:stop]):
        if stop >= end:
            return True
        start = stop
        stop = min(stop + CHECKED_BYTES, end)
    return False


def _head_bytes(text: bytes) -> int:
    """Return the size of a string's start that a translation reads: a data URL up to its data, or a URL's scheme.

    The last of them is a byte that can be the end of an escape, but not its beginning.
    """
    if text.startswith(b"data:"):
        return text.find(b",") + 1
    return text.find(b"/", text.find(b"/", 0, 16) + 1) + 1 if text.startswith(b"http") else 0
