"""A body as a list of segments. Edits copy no unchanged bytes.

Pure. The JSON editor builds one; the upstream connection writes its segments one after another.
"""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from io import BytesIO

from proxy.time_slices import at_once

Segment = bytes | memoryview

DIGITS = 5
"""Digits of a span's number in a placeholder."""
SPANS_PER_SLICE = 64
PIECE_BYTES = 64 << 10


class SegmentedBody:
    """A text in segments. `bytes()` and `len()` give the whole text and its size in bytes."""

    __slots__ = ("_length", "_segments")

    def __init__(self, *segments: Segment) -> None:
        self._segments = segments
        self._length = sum(map(len, segments))

    def __len__(self) -> int:
        return self._length

    def measure_in_slices(self) -> Generator[None, None, None]:
        """Compute `len()` in slices, if it is not known yet."""
        yield from ()

    @property
    def text_segments(self) -> Iterable[Segment]:
        return self._segments

    def __bytes__(self) -> bytes:
        return b"".join(self.text_segments)

    def join_in_slices(self) -> Generator[None, None, bytes]:
        """Return `bytes()` of the text, built in slices."""
        yield from self.measure_in_slices()
        whole = BytesIO(bytes(len(self)))  # untouched zero pages cost no memory; growing could copy everything at once
        for piece in self.pieces(PIECE_BYTES):
            whole.write(piece)
            yield
        return whole.getvalue()

    def pieces(self, size: int) -> Iterator[Segment]:
        """Yield the text in pieces of `size` bytes; the last one may be shorter."""
        short: list[Segment] = []
        short_bytes = 0
        for segment in self.text_segments:
            if short_bytes + len(segment) < size:
                short.append(segment)
                short_bytes += len(segment)
                continue
            view = memoryview(segment)
            start = 0
            while short_bytes + len(view) - start >= size:
                stop = start + size - short_bytes
                piece = view[start:stop]
                yield b"".join((*short, piece)) if short else piece
                short = []
                short_bytes = 0
                start = stop
            if start < len(view):
                short.append(view[start:])
                short_bytes += len(view) - start
        if short:
            yield b"".join(short)


@dataclass(slots=True)
class PlaceholderSpans:
    """A text, and the spans of it that placeholders stand for: their start offsets and sizes, in bytes.

    A placeholder is `marker` followed by the span's number in `DIGITS` digits.
    """

    text: bytes
    marker: bytes
    starts: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


class RestoredBody(SegmentedBody):
    """A text whose placeholders are replaced by the spans they stand for.

    Its segments are computed on each iteration instead of stored: there may be two hundred thousand.
    """

    __slots__ = ("_spans", "_text")

    def __init__(self, text: bytes, spans: PlaceholderSpans) -> None:
        self._text = text
        self._spans = spans
        self._length = -1

    def __len__(self) -> int:
        if self._length < 0:
            at_once(self.measure_in_slices())
        return self._length

    def measure_in_slices(self) -> Generator[None, None, None]:
        sizes = self._spans.sizes
        length = len(self._text)
        for number, (start, end, span) in enumerate(self._placeholders()):
            length += sizes[span] - (end - start)
            if number % SPANS_PER_SLICE == 0:
                yield
        self._length = length

    @property
    def text_segments(self) -> Iterator[Segment]:
        text = self._text
        view = memoryview(self._spans.text)
        starts = self._spans.starts
        sizes = self._spans.sizes
        copied_to = 0
        for start, end, span in self._placeholders():
            yield text[copied_to:start]
            yield view[starts[span] : starts[span] + sizes[span]]
            copied_to = end
        yield text[copied_to:]

    def _placeholders(self) -> Iterator[tuple[int, int, int]]:
        """Yield each placeholder's start, its end and the number of its span."""
        text = self._text
        marker = self._spans.marker
        at = text.find(marker)
        while at >= 0:
            number = at + len(marker)
            end = number + DIGITS
            yield at, end, int(text[number:end])
            at = text.find(marker, end)


RequestBody = bytes | SegmentedBody
