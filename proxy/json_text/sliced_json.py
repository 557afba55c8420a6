"""Parses a JSON text of any size in slices: validates each string that is not short, then parses what is left.

Pure. The parser sees a placeholder for each validated string; what is left is bounded (`json_bounds.py`). Accepts what
orjson accepts, within the bounds. Time and memory are linear in the text whatever it holds: no regular expression is
used, and no byte is examined more than a few times.
"""

from collections.abc import Generator
from typing import Any

import orjson

from proxy.json_text.json_bounds import MAX_MEMBERS, TooManyValuesError, ValueCounter
from proxy.json_text.large_json import Outline, is_plain, parse_with_placeholders
from proxy.json_text.string_cuts import first_unescaped_quote, safe_cut

AT_ONCE_BYTES = 512 << 10
"""Texts up to this size are parsed in one step: the worst one within the bounds takes orjson ten milliseconds."""
SHORT_BYTES = 128
"""Strings up to this size get no placeholder. Longer than any guarded member's name, even written in escapes."""
PIECE_BYTES = 64 << 10
"""Bytes of a string that are validated at a time, so that they stay in the CPU's cache."""
PROBE_BYTES = 256
"""Size of the first piece of a string that has escaped quotes."""
STRINGS_PER_SLICE = 64

_QUOTE = b'"'
_BACKSLASH = ord("\\")
_KEEPS_DEPTH = frozenset((b",", b":", b", ", b": "))

ParsedText = tuple[Any, Outline | None]
Work = Generator[None, None, None]


def parse_in_slices(raw: bytes) -> Generator[None, None, ParsedText]:
    """Return the parsed value. With an outline, any string of it may hold a placeholder.

    Raises `orjson.JSONDecodeError`, or `TooManyValuesError` for a text beyond the bounds.
    """
    parsed_text = parse_at_once(raw)
    if parsed_text is not None:
        return parsed_text
    scan = _Scan(raw)
    yield from scan.run()
    yield
    parsed = _checked_members(orjson.loads(scan.outline.text))
    yield
    return parsed, scan.outline


def parse_at_once(raw: bytes) -> ParsedText | None:
    """`parse_in_slices` in one step. Returns None for a text that would block the event loop."""
    parsed_text = parse_with_placeholders(raw) if len(raw) <= AT_ONCE_BYTES else None
    if parsed_text is not None:
        _checked_members(parsed_text[0])
    return parsed_text


def _checked_members(parsed: Any) -> Any:
    if isinstance(parsed, dict) and len(parsed) > MAX_MEMBERS:
        raise _too_many_members()
    return parsed


def _too_many_members() -> TooManyValuesError:
    return TooManyValuesError(f"holds more than {MAX_MEMBERS} members")


class _Scan:
    """One pass over a text, from string to string."""

    __slots__ = ("_between", "_checked", "_counter", "_depth", "_raw", "_short_bytes", "outline")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._counter = ValueCounter()
        self._between: list[bytes] = []
        self._checked = False
        self._depth = 0
        self._short_bytes = 0
        self.outline = Outline(raw)

    def run(self) -> Work:
        raw = self._raw
        outline = self.outline
        between = self._between
        scanned_to = 0
        at = raw.find(_QUOTE)
        while at >= 0:
            if at - scanned_to > PIECE_BYTES:
                yield from self._count_gap(scanned_to, at)
                between.append(b"")
                before = raw[scanned_to:at]
            else:
                before = raw[scanned_to:at]
                between.append(before)
                self._depth += _depth_change(before)
            end = raw.find(_QUOTE, at + 1)
            self._checked = False
            if end < 0:
                raise _unterminated_string()
            if raw[end - 1] == _BACKSLASH:
                end = yield from self._closing_quote(at + 1)
            if self._depth == 1:
                self._note_key(before, at, end)
            if end - at > SHORT_BYTES:
                if self._checked:
                    pass
                elif end - at <= PIECE_BYTES:
                    orjson.loads(raw[at : end + 1])  # raises if it is invalid
                else:
                    yield from self._validate(at + 1, end)
                outline.add_placeholder(at + 1, end)
            else:
                self._short_bytes += end - at + 1
            if len(between) == STRINGS_PER_SLICE:
                self._count_strings()
                yield
            scanned_to = end + 1
            at = raw.find(_QUOTE, scanned_to)
        self._count_strings()
        yield from self._count_gap(scanned_to, len(raw))
        outline.finish()

    def _count_gap(self, start: int, end: int) -> Work:
        """Count a long stretch without strings, in slices."""
        for at in range(start, end, PIECE_BYTES):
            piece = self._raw[at : min(at + PIECE_BYTES, end)]
            self._counter.add(piece)
            self._depth += _depth_change(piece)
            yield

    def _note_key(self, before: bytes, at: int, end: int) -> None:
        """Record a string at depth 1 if it is a key: then a brace or a comma stands before it, not a colon."""
        key_spans = self.outline.key_spans
        if before.rstrip().endswith(b"," if key_spans else b"{"):
            key_spans.append((at, end + 1))
            if len(key_spans) > MAX_MEMBERS:
                raise _too_many_members()

    def _count_strings(self) -> None:
        self._counter.add(b"".join(self._between), len(self._between), self._short_bytes)
        self._between.clear()
        self._short_bytes = 0

    def _validate(self, start: int, end: int) -> Work:
        """Raise `orjson.JSONDecodeError` unless `raw[start:end]` is the inside of a valid string."""
        raw = self._raw
        view = memoryview(self._raw)
        plain = True
        while start < end:
            stop = end if end - start <= PIECE_BYTES else safe_cut(raw, start, start + PIECE_BYTES)
            plain = plain and is_plain(view[start:stop])
            if not plain:  # prose stays prose: do not try the plain check again
                orjson.loads(b'"%b"' % raw[start:stop])
            start = stop
            yield

    def _closing_quote(self, start: int) -> Generator[None, None, int]:
        """Return the offset of the quote that closes a string with escaped quotes. Validates the inside as well."""
        raw = self._raw
        size = PROBE_BYTES
        total = len(self._raw)
        while start < total:
            stop = total if total - start <= size else safe_cut(raw, start, start + size)
            piece = raw[start:stop]
            if size == PROBE_BYTES or not _is_string_inside(piece):
                at = first_unescaped_quote(piece)
                orjson.loads(b'"%b"' % (piece if at < 0 else piece[:at]))
                if at >= 0:
                    self._checked = True
                    return start + at
            start = stop
            size = min(2 * size, PIECE_BYTES)
            yield
        raise _unterminated_string()


def _depth_change(between: bytes) -> int:
    """Return how many more objects and lists are open after these bytes than before them."""
    if between in _KEEPS_DEPTH:
        return 0
    return between.count(b"{") + between.count(b"[") - between.count(b"}") - between.count(b"]")


def _is_string_inside(piece: bytes) -> bool:
    """Return whether a string is valid so far and does not end in `piece`. Parsing it beats sorting out its quotes."""
    try:
        orjson.loads(b'"%b"' % piece)
    except orjson.JSONDecodeError:
        return False
    return True


def _unterminated_string() -> orjson.JSONDecodeError:
    return orjson.JSONDecodeError("a string has no end", "", 0)
