"""Server-sent events: splits a byte stream into frames at blank lines, and reads the fields of a frame.

Pure. Rewrites no byte of an event stream. A frame above `MAX_FRAME_BYTES` is not collected; it is passed on in pieces.
"""

import re

MAX_FRAME_BYTES = 128 << 10
"""A frame up to this size is parsed in a few milliseconds, whatever it holds."""

_LEADING = re.compile(rb"(?:(?::[^\r\n]*+)?\r?\n)++")
_BLANK = re.compile(rb"\n\r?\n|\r\r")
_DATA = re.compile(rb"(?:\A|[\r\n])data:[ ]?([^\r\n]*+)")
ERROR_FIELD = b"error:"
"""The field in which llama.cpp told a failure until September 2025, in place of data."""
_EVENT = re.compile(rb"(?:\A|[\r\n])event:[ ]?([^\r\n]*+)")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""A stream may begin with it; clients ignore it (HTML Standard 9.2.5)."""
_FIELD = b"data: "
_LINE_END = re.compile(rb"\n[\r\n\t ]*")
"""The end of a line of JSON, with the blank lines after it."""
_LEADING_BYTES = b":\r\n\xef"
_LINE_BEGINNINGS = (b":", b"\r", b"\n")
CR = 0x0D
"""A byte as an integer: `in` then takes a tenth of the time."""

Piece = tuple[bytes, int]
"""Bytes of the stream, and their kind."""

COMMENT = 0
FRAME = 1
HEAD = 2
MIDDLE = 3
TAIL = 4
"""The parts of an oversized frame. The head has exactly the limit's size; the others have any size."""


class Framer:
    """Splits received bytes into pieces whose concatenation is the stream. The frames do not depend on TCP segments.

    `at_boundary`: nothing is held back, and the next byte begins a frame.
    """

    __slots__ = ("_begun", "_held_bytes", "_last", "_leads", "_limit", "_oversized", "_pieces", "at_boundary")

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._begun = False
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._last = b""
        """The last two bytes held: together with the next ones they may form a blank line."""
        self._leads = False
        """True if the held bytes may be a comment, blank line or byte-order mark before a frame: the line goes on."""
        self._oversized = False
        self._limit = limit
        self.at_boundary = True

    def split(self, data: bytes) -> list[Piece]:
        """Return the pieces that `data` completes; hold the rest."""
        if self._pieces and self._completes_nothing(data):
            self._hold(data)
            return []
        buffer = b"".join((*self._pieces, data)) if self._pieces else data
        pieces: list[Piece] = []
        start = 0 if self._begun else self._pass_byte_order_mark(buffer, pieces)
        search_from = max(0, self._held_bytes - 2)
        has_returns = CR in buffer
        while True:
            if not self._oversized and start < len(buffer) and buffer[start] in _LEADING_BYTES:
                start = self._pass_leading(buffer, start, pieces)
            end = _frame_end(buffer, max(start, search_from), has_returns)
            if end < 0:
                break
            if self._oversized or end - start > self._limit:
                self._cut_oversized(buffer, start, end, pieces)
            else:
                pieces.append((buffer[start:end], FRAME))
            start = end
        self._keep(buffer, start, pieces)
        return pieces

    def flush(self) -> bytes:
        """Return what is held at the end of the stream: the bytes after the last blank line."""
        rest = b"".join(self._pieces)
        self._pieces = []
        self._held_bytes = 0
        self._last = b""
        return rest

    def _pass_byte_order_mark(self, buffer: bytes, pieces: list[Piece]) -> int:
        """Pass a byte-order mark on as a piece of its own. Returns the offset after it."""
        self._begun = len(buffer) >= len(BYTE_ORDER_MARK) or not BYTE_ORDER_MARK.startswith(buffer)
        if not buffer.startswith(BYTE_ORDER_MARK):
            return 0
        pieces.append((BYTE_ORDER_MARK, COMMENT))
        return len(BYTE_ORDER_MARK)

    def _completes_nothing(self, data: bytes) -> bool:
        """Return whether held bytes and `data` together still make no piece. Does not scan the held bytes again."""
        if self._oversized or self._held_bytes + len(data) > self._limit:
            return False
        if self._leads:
            return self._begun and b"\n" not in data and CR not in data
        joint = self._last + data
        return _frame_end(joint, 0, CR in joint) < 0

    def _hold(self, data: bytes) -> None:
        self._pieces.append(data)
        self._held_bytes += len(data)
        self._last = (self._last + data[-2:])[-2:]

    def _pass_leading(self, buffer: bytes, start: int, pieces: list[Piece]) -> int:
        """Pass on comments and blank lines before a frame at once: they keep the connection alive."""
        match = _LEADING.match(buffer, start)
        if match is None:
            return start
        pieces.append((match[0], COMMENT))
        return match.end()

    def _cut_oversized(self, buffer: bytes, start: int, end: int, pieces: list[Piece]) -> None:
        if self._oversized:
            self._oversized = False
            pieces.append((buffer[start:end], TAIL))
        else:
            middle = start + self._limit
            pieces += ((buffer[start:middle], HEAD), (buffer[middle:end], TAIL))

    def _keep(self, buffer: bytes, start: int, pieces: list[Piece]) -> None:
        rest = buffer[start:] if start else buffer
        if not self._oversized and len(rest) > self._limit + 2:
            pieces.append((rest[: self._limit], HEAD))
            rest = rest[self._limit :]
            self._oversized = True
        if self._oversized and len(rest) > 2:  # the last two bytes may be the start of the blank line
            pieces.append((rest[:-2], MIDDLE))
            rest = rest[-2:]
        self._pieces = [rest] if rest else []
        self._held_bytes = len(rest)
        self._last = rest[-2:]
        begins = rest[:1] in _LINE_BEGINNINGS or not self._begun
        self._leads = begins and b"\n" not in rest and CR not in rest[:-1]
        self.at_boundary = not rest and not self._oversized


class LineFramer(Framer):
    """Splits lines of JSON into frames, as if each line were the data of an event."""

    __slots__ = ()

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        super().__init__(limit)
        super().split(_FIELD)

    def split(self, data: bytes) -> list[Piece]:
        return super().split(_LINE_END.sub(b"\n\n" + _FIELD, data))


def whole_frames(data: bytes) -> list[bytes]:
    """The frames of `data`, which begins a frame, if it is nothing else, as nearly all reads are: then no framer is
    needed. Else empty.

    Recognizes only short frames whose lines end in line feeds.
    """
    if len(data) > MAX_FRAME_BYTES or not data.endswith(b"\n\n") or data.endswith(b"\n\n\n") or CR in data:
        return []
    frames = [lines + b"\n\n" for lines in data[:-2].split(b"\n\n")]
    for frame in frames:
        if frame[0] in _LEADING_BYTES:
            return []
    return frames


def _frame_end(buffer: bytes, start: int, has_returns: bool) -> int:
    """Offset after the first blank line at or after `start`; -1 if none. `find` is faster than a regex here."""
    if not has_returns:
        at = buffer.find(b"\n\n", start)
        return at + 2 if at >= 0 else -1
    match = _BLANK.search(buffer, start)
    return match.end() if match else -1


def data_span(frame: bytes) -> tuple[int, int] | None:
    """Start and end of the frame's payload; None unless the frame has exactly one data line."""
    spans = [match.span(1) for match in _DATA.finditer(frame)]
    return spans[0] if len(spans) == 1 else None


def data_of(frame: bytes) -> bytes:
    """The payload of a frame: its data lines joined by line feeds, or the object of a failure; empty without either."""
    data = b"\n".join(match[1] for match in _DATA.finditer(frame))
    if not data and frame.startswith(ERROR_FIELD):
        return b'{"error":%b}' % frame[len(ERROR_FIELD) :].strip()
    return data


def event_of(frame: bytes) -> bytes:
    """The event's name; empty if the frame has none."""
    names = _EVENT.findall(frame)
    return names[-1] if names else b""
