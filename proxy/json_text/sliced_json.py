"""Reads a JSON text of any size in slices: each string that is not short is checked by itself and has a placeholder
in what is parsed; what is left is bounded (`json_bounds.py`).

Pure. Means what orjson means, but for the bounds. Time and memory are linear in the text, whatever it holds: nothing
here is a pattern, and nothing is looked at more than a few times.
"""

from collections.abc import Generator
from typing import Any

import orjson

from proxy.json_text.json_bounds import MAX_MEMBERS, TooManyValuesError, ValueCounter
from proxy.json_text.large_json import Outline, is_plain, parse_with_placeholders

AT_ONCE_BYTES = 512 << 10
"""Up to here orjson takes ten milliseconds for the worst text that is within the bounds."""
SHORT_BYTES = 128
"""A string up to here is left where it is. Longer than any name that we act on, spelled in escapes."""
PIECE_BYTES = 64 << 10
"""So much of a string is checked together: it stays in the cache."""
PROBE_BYTES = 256
"""The first piece of a string in which escapes are."""
STRINGS_A_SLICE = 64

_QUOTE = b'"'
_BACKSLASH = ord("\\")
_ROW = b"\\" * PIECE_BYTES
_LEVEL = frozenset((b",", b":", b", ", b": "))
_HIGH_SURROGATES = frozenset((b"d8", b"d9", b"da", b"db"))

ParsedText = tuple[Any, Outline | None]
Work = Generator[None, None, None]


def parse_in_slices(raw: bytes) -> Generator[None, None, ParsedText]:
    """What the text says; with an outline, placeholders stand for its strings, wherever they are.

    Raises `orjson.JSONDecodeError`, or `TooManyValuesError` for a text beyond the bounds.
    """
    short = parse_at_once(raw)
    if short is not None:
        return short
    scan = _Scan(raw)
    yield from scan.run()
    yield
    parsed = _bounded(orjson.loads(scan.outline.text))
    yield
    return parsed, scan.outline


def parse_at_once(raw: bytes) -> ParsedText | None:
    """`reading` without a pause; None for what would hold the loop."""
    found = parse_with_placeholders(raw) if len(raw) <= AT_ONCE_BYTES else None
    if found is not None:
        _bounded(found[0])
    return found


def _bounded(parsed: Any) -> Any:
    if isinstance(parsed, dict) and len(parsed) > MAX_MEMBERS:
        raise _too_many_members()
    return parsed


def _too_many_members() -> TooManyValuesError:
    return TooManyValuesError(f"holds more than {MAX_MEMBERS} members")


class _Scan:
    """One walk over a text, from string to string."""

    __slots__ = ("_between", "_checked", "_depth", "_extent", "_raw", "_short_bytes", "outline")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._extent = ValueCounter()
        self._between: list[bytes] = []
        self._checked = False
        self._depth = 0
        self._short_bytes = 0
        self.outline = Outline(raw)

    def run(self) -> Work:
        raw, outline, between = self._raw, self.outline, self._between
        done, at = 0, raw.find(_QUOTE)
        while at >= 0:
            if at - done > PIECE_BYTES:
                yield from self._gap(done, at)
                between.append(b"")
                before = raw[done:at]
            else:
                before = raw[done:at]
                between.append(before)
                self._depth += _deeper(before)
            end = raw.find(_QUOTE, at + 1)
            self._checked = False
            if end < 0:
                raise _broken_off()
            if raw[end - 1] == _BACKSLASH:
                end = yield from self._escaped(at + 1)
            if self._depth == 1:
                self._top(before, at, end)
            if end - at > SHORT_BYTES:
                if self._checked:
                    pass
                elif end - at <= PIECE_BYTES:
                    orjson.loads(raw[at : end + 1])
                else:
                    yield from self._check(at + 1, end)
                outline.add_placeholder(at + 1, end)
            else:
                self._short_bytes += end - at + 1
            if len(between) == STRINGS_A_SLICE:
                self._count()
                yield
            done = end + 1
            at = raw.find(_QUOTE, done)
        self._count()
        yield from self._gap(done, len(raw))
        outline.finish()

    def _gap(self, start: int, end: int) -> Work:
        """A long way from one string to the next, or to the end."""
        for at in range(start, end, PIECE_BYTES):
            piece = self._raw[at : min(at + PIECE_BYTES, end)]
            self._extent.add(piece)
            self._depth += _deeper(piece)
            yield

    def _top(self, before: bytes, at: int, end: int) -> None:
        """A string directly in what is outermost: a key, where no colon stands before it."""
        key_spans = self.outline.key_spans
        if before.rstrip().endswith(b"," if key_spans else b"{"):
            key_spans.append((at, end + 1))
            if len(key_spans) > MAX_MEMBERS:
                raise _too_many_members()

    def _count(self) -> None:
        self._extent.add(b"".join(self._between), len(self._between), self._short_bytes)
        self._between.clear()
        self._short_bytes = 0

    def _check(self, start: int, end: int) -> Work:
        """Raises `orjson.JSONDecodeError` unless what stands there is the inside of a string."""
        raw, view, plain = self._raw, memoryview(self._raw), True
        while start < end:
            stop = end if end - start <= PIECE_BYTES else _cut(raw, start, start + PIECE_BYTES)
            plain = plain and is_plain(view[start:stop])
            if not plain:  # nor will the rest be, as prose is told on
                orjson.loads(b'"%b"' % raw[start:stop])
            start = stop
            yield

    def _escaped(self, start: int) -> Generator[None, None, int]:
        """Where the quote stands that ends a string in which others are escaped. The inside is checked with it."""
        raw, size, total = self._raw, PROBE_BYTES, len(self._raw)
        while start < total:
            stop = total if total - start <= size else _cut(raw, start, start + size)
            piece = raw[start:stop]
            if size == PROBE_BYTES or not _is_inside(piece):
                at = _first_quote(piece)
                orjson.loads(b'"%b"' % (piece if at < 0 else piece[:at]))
                if at >= 0:
                    self._checked = True
                    return start + at
            start, size = stop, min(2 * size, PIECE_BYTES)
            yield
        raise _broken_off()


def _deeper(between: bytes) -> int:
    """How many more objects and lists are open behind it than before."""
    if between in _LEVEL:
        return 0
    return between.count(b"{") + between.count(b"[") - between.count(b"}") - between.count(b"]")


def _is_inside(piece: bytes) -> bool:
    """Whether a string goes on beyond `piece`, and is sound so far: a parser tells so faster than the quotes are told
    apart."""
    try:
        orjson.loads(b'"%b"' % piece)
    except orjson.JSONDecodeError:
        return False
    return True


def _first_quote(piece: bytes) -> int:
    """Where the first quote stands that no backslash escapes; -1 when none does. `piece` begins with no half escape."""
    if _QUOTE not in piece:
        return -1
    return piece.replace(b"\\\\", b"__").replace(b'\\"', b"__").find(_QUOTE)


def _cut(raw: bytes, start: int, at: int) -> int:
    """A place near `at`, beyond `start`, that is inside of no character, escape or pair of surrogates.

    `start` is such a place, a hundred bytes or more before `at`. A few bytes beyond the text's end are as good.
    """
    while at > start + 8 and raw[at] & 0xC0 == 0x80:  # what continues a character
        at -= 1
    slash = raw.rfind(b"\\", at - 6, at)
    if slash < 0:
        return at
    if _backslashes_at_end(raw[start : slash + 1]) % 2 == 0:  # the last of them is itself escaped
        return at
    if raw[slash + 1 : slash + 2] != b"u":
        return max(at, slash + 2)
    return slash if raw[slash + 2 : slash + 4].lower() in _HIGH_SURROGATES else max(at, slash + 6)


def _backslashes_at_end(piece: bytes) -> int:
    """How many end the piece. By doubling, then by halves: comparing is ten times as fast as stripping."""
    if piece == _ROW[: len(piece)]:
        return len(piece)
    high = 1
    while high < len(piece) and piece.endswith(_ROW[:high]):
        high *= 2
    low, high = 0, min(high, len(piece))
    while low < high:
        middle = (low + high + 1) // 2
        if piece.endswith(_ROW[:middle]):
            low = middle
        else:
            high = middle - 1
    return low


def _broken_off() -> orjson.JSONDecodeError:
    return orjson.JSONDecodeError("a string has no end", "", 0)
