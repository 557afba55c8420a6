"""A long text in which a little was changed: its parts in order, none of what stayed copied.

Pure. Passed from who changes it to the wire, which sends the parts one after another.
"""

from typing import Final


class Spliced:
    """`bytes` of it, and its `len`, are the whole text's."""

    __slots__ = ("_length", "parts")

    def __init__(self, *parts: bytes | memoryview) -> None:
        self.parts: Final = parts
        self._length = sum(map(len, parts))

    def __len__(self) -> int:
        return self._length

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)


RequestBody = bytes | Spliced
