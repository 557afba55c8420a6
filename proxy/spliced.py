"""A long text in which a little was changed: its parts in order, none of what stayed copied.

Pure. Passed from who changes it to the wire, which sends the parts one after another.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

Part = bytes | memoryview


class Spliced:
    """`bytes` of it, and its `len`, are the whole text's."""

    __slots__ = ("_length", "_parts")

    def __init__(self, *parts: Part) -> None:
        self._parts = parts
        self._length = sum(map(len, parts))

    def __len__(self) -> int:
        return self._length

    @property
    def parts(self) -> Iterable[Part]:
        return self._parts

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)

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


class Filled(Spliced):
    """A text with gaps, each filled by a span of another text. Its parts are made one by one, whenever they are gone
    through: there may be two hundred thousand."""

    __slots__ = ("_between", "_mark_bytes", "_numbers", "_source")

    def __init__(self, between: Sequence[bytes], mark_bytes: int, numbers: Sequence[int], source: "Source") -> None:
        """`between`: what stands around the gaps, where each but the first begins with a mark that is left out.

        `numbers`: which of the source's spans fill them.
        """
        self._between = between
        self._mark_bytes = mark_bytes
        self._numbers = numbers
        self._source = source
        filled_bytes = sum(map(source.sizes.__getitem__, numbers))
        self._length = sum(map(len, between)) - mark_bytes * len(numbers) + filled_bytes

    @property
    def parts(self) -> Iterator[Part]:
        text, starts, sizes, skip = (
            memoryview(self._source.text),
            self._source.starts,
            self._source.sizes,
            self._mark_bytes,
        )
        yield self._between[0]
        for number, piece in zip(self._numbers, islice(self._between, 1, None), strict=True):
            start = starts[number]
            yield text[start : start + sizes[number]]
            yield piece[skip:]


@dataclass(slots=True)
class Source:
    """A text, and spans of it: where each begins, and how long it is."""

    text: bytes
    starts: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


RequestBody = bytes | Spliced
