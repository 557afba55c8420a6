"""Server-sent events as frames: cut a byte stream at blank lines, however TCP has cut it, and look into one frame.

Pure. Bytes are never rewritten here. A frame above `MAX_FRAME_BYTES` is not collected: it goes on in pieces.
"""

import re

MAX_FRAME_BYTES = 1 << 20

_LEADING = re.compile(rb"(?:(?::[^\r\n]*+)?\r?\n)++")
_BLANK = re.compile(rb"\n\r?\n|\r\r")
_DATA = re.compile(rb"(?:\A|[\r\n])data:[ ]?([^\r\n]*+)")
_EVENT = re.compile(rb"(?:\A|[\r\n])event:[ ]?([^\r\n]*+)")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""A stream may begin with it; clients ignore it (the HTML standard, 9.2.5)."""
_LEADING_BYTES = b":\r\n\xef"
CR = 0x0D
"""As a number, because `in` then costs a tenth."""

Piece = tuple[bytes, int]
"""Part of the stream, and which part it is."""

COMMENT = 0
FRAME = 1
HEAD, MIDDLE, TAIL = 2, 3, 4
"""The parts of an oversized frame: the head has exactly the limit, the others come as they come."""


class Framer:
    """Bytes as they come → pieces whose concatenation is the stream; the same frames however TCP has cut it.

    `between`: nothing is held back, and what comes next begins a frame.
    """

    __slots__ = ("_begun", "_held", "_held_bytes", "_last", "_limit", "_oversized", "at_boundary")

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._begun = False
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._last = b""
        """The last bytes that are held: with what comes next they may make a blank line."""
        self._oversized = False
        self._limit = limit
        self.at_boundary = True

    def split(self, data: bytes) -> list[Piece]:
        """The pieces that `data` completes; what is incomplete stays here."""
        if self._held and self._completes_nothing(data):
            self._hold(data)
            return []
        buffer = b"".join((*self._held, data)) if self._held else data
        pieces: list[Piece] = []
        start = 0 if self._begun else self._pass_mark(buffer, pieces)
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

    def rest(self) -> bytes:
        """The stream has ended: what came after the last blank line."""
        rest = b"".join(self._held)
        self._held, self._held_bytes, self._last = [], 0, b""
        return rest

    def _pass_mark(self, buffer: bytes, pieces: list[Piece]) -> int:
        """A byte-order mark goes on as it came; what comes after it is the stream."""
        self._begun = len(buffer) >= len(BYTE_ORDER_MARK) or not BYTE_ORDER_MARK.startswith(buffer)
        if not buffer.startswith(BYTE_ORDER_MARK):
            return 0
        pieces.append((BYTE_ORDER_MARK, COMMENT))
        return len(BYTE_ORDER_MARK)

    def _completes_nothing(self, data: bytes) -> bool:
        """Whether what is held and `data` are still less than a piece. Looks at no byte of what is held again."""
        if self._oversized or self._held_bytes + len(data) > self._limit:
            return False
        if self._held[0][0] in _LEADING_BYTES:
            return b"\n" not in data and CR not in data
        seam = self._last + data
        return _frame_end(seam, 0, CR in seam) < 0

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        self._last = (self._last + data[-2:])[-2:]

    def _pass_leading(self, buffer: bytes, start: int, pieces: list[Piece]) -> int:
        """Comments and blank lines before a frame need not wait for it: they are what keeps a connection alive."""
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
            rest, self._oversized = rest[self._limit :], True
        if self._oversized and len(rest) > 2:  # two bytes may yet turn out to begin the blank line
            pieces.append((rest[:-2], MIDDLE))
            rest = rest[-2:]
        self._held, self._held_bytes, self._last = [rest] if rest else [], len(rest), rest[-2:]
        self.at_boundary = not rest and not self._oversized


def is_one_frame(data: bytes) -> bool:
    """Whether bytes that begin a frame are just that frame, as nearly all are that come: then no framer need cut them.

    Tells the plain form alone: lines end in line feeds.
    """
    if not 0 < data.find(b"\n\n") == len(data) - 2 <= MAX_FRAME_BYTES - 2:
        return False
    return CR not in data and data[0] not in _LEADING_BYTES


def _frame_end(buffer: bytes, start: int, has_returns: bool) -> int:
    """Where the first blank line at or after `start` ends; -1 when there is none. Finding beats matching here."""
    if not has_returns:
        at = buffer.find(b"\n\n", start)
        return at + 2 if at >= 0 else -1
    match = _BLANK.search(buffer, start)
    return match.end() if match else -1


def data_span(frame: bytes) -> tuple[int, int] | None:
    """Where the payload of a frame stands; None when the frame has no data, or has it on several lines."""
    spans = [match.span(1) for match in _DATA.finditer(frame)]
    return spans[0] if len(spans) == 1 else None


def data_of(frame: bytes) -> bytes:
    """The payload of a frame: its data lines, joined by line feeds; empty when there is none."""
    return b"\n".join(match[1] for match in _DATA.finditer(frame))


def event_of(frame: bytes) -> bytes:
    """The event's name; empty when the frame has none."""
    names = _EVENT.findall(frame)
    return names[-1] if names else b""
