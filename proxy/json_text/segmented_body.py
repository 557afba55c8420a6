"""A long text in which a little was changed: its parts in order, none of what stayed copied.

Pure. Passed from who changes it to the wire, which sends the parts one after another.
"""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from io import BytesIO

from proxy.time_slices import at_once

Part = bytes | memoryview

DIGITS = 5
"""Of a span's number."""
SPANS_A_SLICE = 64
PIECE_BYTES = 64 << 10


class Spliced:
    """`bytes` of it, and its `len`, are the whole text's."""

    __slots__ = ("_length", "_parts")

    def __init__(self, *parts: Part) -> None:
        self._parts = parts
        self._length = sum(map(len, parts))

    def __len__(self) -> int:
        return self._length

    def counting(self) -> Generator[None, None, None]:
        """Finds out `len` in slices, where it is not known."""
        yield from ()

    @property
    def parts(self) -> Iterable[Part]:
        return self._parts

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)

    def joining(self) -> Generator[None, None, bytes]:
        """`bytes` of it, in slices."""
        yield from self.counting()
        whole = BytesIO(bytes(len(self)))  # zeros take no memory until they are written; to grow could copy all at once
        for piece in self.pieces(PIECE_BYTES):
            whole.write(piece)
            yield
        return whole.getvalue()

    def pieces(self, size: int) -> Iterator[Part]:
        """The text in pieces of `size` bytes, but for the last one."""
        short: list[Part] = []
        short_bytes = 0
        for part in self.parts:
            if short_bytes + len(part) < size:
                short.append(part)
                short_bytes += len(part)
                continue
            view, start = memoryview(part), 0
            while short_bytes + len(view) - start >= size:
                stop = start + size - short_bytes
                piece = view[start:stop]
                yield b"".join((*short, piece)) if short else piece
                short, short_bytes, start = [], 0, stop
            if start < len(view):
                short.append(view[start:])
                short_bytes += len(view) - start
        if short:
            yield b"".join(short)


@dataclass(slots=True)
class Source:
    """A text, and spans of it: where each begins, and how long it is.

    `name` and a span's number, of `DIGITS` digits, stand for the span in other texts.
    """

    text: bytes
    name: bytes
    starts: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


class Filled(Spliced):
    """A text in which spans of another one take the places of what stands for them.

    Its parts are found one by one, whenever they are gone through: there may be two hundred thousand.
    """

    __slots__ = ("_source", "_text")

    def __init__(self, text: bytes, source: Source) -> None:
        self._text = text
        self._source = source
        self._length = -1

    def __len__(self) -> int:
        if self._length < 0:
            at_once(self.counting())
        return self._length

    def counting(self) -> Generator[None, None, None]:
        sizes, length = self._source.sizes, len(self._text)
        for number, (start, end, span) in enumerate(self._places()):
            length += sizes[span] - (end - start)
            if number % SPANS_A_SLICE == 0:
                yield
        self._length = length

    @property
    def parts(self) -> Iterator[Part]:
        text, view, starts, sizes = self._text, memoryview(self._source.text), self._source.starts, self._source.sizes
        done = 0
        for start, end, span in self._places():
            yield text[done:start]
            yield view[starts[span] : starts[span] + sizes[span]]
            done = end
        yield text[done:]

    def _places(self) -> Iterator[tuple[int, int, int]]:
        """Where something stands for a span, and which one."""
        text, name = self._text, self._source.name
        at = text.find(name)
        while at >= 0:
            number = at + len(name)
            end = number + DIGITS
            yield at, end, int(text[number:end])
            at = text.find(name, end)


RequestBody = bytes | Spliced
