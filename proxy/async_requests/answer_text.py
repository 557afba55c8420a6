"""Tells what a model's answer is, while it passes in chunks: JSON, text, or neither. Pure.

A webhook is told JSON as it is, and text as a JSON string; it cannot be told bytes that are no UTF-8 text.
"""

from codecs import getincrementaldecoder
from collections.abc import Generator
from enum import Enum

from proxy.json_text.streamed_json import StreamedJson


class AnswerKind(Enum):
    """The form of an answer."""

    JSON = "json"
    TEXT = "text"
    BINARY = "binary"


class AnswerText:
    """Give it the whole answer in `add`, then ask for its `kind`."""

    __slots__ = ("_decoder", "_is_text", "_json")

    def __init__(self) -> None:
        self._json = StreamedJson()
        self._decoder = getincrementaldecoder("utf-8")()
        self._is_text = True

    def add(self, chunk: bytes) -> Generator[None, None, None]:
        """Look at the next chunk. Others may run at each `yield`; a step takes about a millisecond at most."""
        if self._decodes(chunk):
            yield from self._json.feed(chunk)

    def kind(self) -> AnswerKind:
        if not self._decodes(b"", final=True):
            return AnswerKind.BINARY
        return AnswerKind.JSON if self._json.is_json() else AnswerKind.TEXT

    def _decodes(self, chunk: bytes, final: bool = False) -> bool:
        """Return whether the answer is UTF-8 so far."""
        try:
            self._decoder.decode(chunk, final)
        except UnicodeDecodeError:
            self._is_text = False
        return self._is_text
