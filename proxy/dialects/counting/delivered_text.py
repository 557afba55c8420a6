"""Counts the output delivered to a caller, for the bill of an answer whose provider reports no usage.

Pure. Counts the caller's own bytes, in the caller's dialect. Bytes are pending until somebody has them
counted, so a stream whose usage is reported costs next to nothing.

See docs/reference/events-and-webhooks.md#token-counts.
"""

import re
from dataclasses import dataclass
from typing import Protocol

import orjson

from policy.billing import Tokens
from policy.token_estimate import sample_of, tokens_of, weight_of
from proxy.dialects import delta_pattern
from proxy.dialects.counting.answer_text import TextExtractor

LESSONS = 8
"""How many deltas are tried as the pattern for the others."""
MAX_UNFINISHED_BYTES = 64 << 10
MAX_PARSED_BYTES = 1 << 20
"""A larger body is weighed without parsing it, which would block the event loop."""
_DATA = re.compile(rb"(?:\A|[\r\n])data:[ ]?([^\r\n]*)")
_DATA_NAME = b"data: "
_BACKSLASH = 0x5C


class AskedTokens(Protocol):
    """The input tokens of a request."""

    @property
    def tokens(self) -> int: ...


@dataclass(frozen=True, slots=True)
class FixedTokens:
    """The input of a request that is not read."""

    tokens: int


class StreamCounter:
    """Counts the frames of a stream."""

    __slots__ = ("_lessons", "_pattern", "_request", "_texts", "_unfinished", "_weight", "pending")
    expects_usage = True

    def __init__(self, request: AskedTokens, texts: TextExtractor) -> None:
        self._request = request
        self._texts = texts
        self.pending: list[bytes] = []
        self._weight = 0
        self._unfinished = b""
        self._pattern = delta_pattern.MATCHES_NOTHING
        self._lessons = LESSONS

    def count(self) -> None:
        pending = self.pending
        if not pending:
            return
        plain = self._pattern.joined_text(*pending) if not self._unfinished else None
        texts = [_unescaped(plain)] if plain is not None else self._texts_frame_by_frame(pending)
        self._weight += weight_of("".join(texts))
        pending.clear()

    def tokens(self, reported_input: Tokens | None) -> Tokens:
        self.count()
        weight = self._weight
        if self._unfinished:  # a JSON body with another content type is read as a stream, and ends without a line feed
            weight += weight_of("".join(_texts_of(self._unfinished, self._texts)))
        return _tokens(weight, self._request, reported_input)

    def _texts_frame_by_frame(self, pending: list[bytes]) -> list[str]:
        plain: list[bytes] = []
        texts: list[str] = []
        for data in pending:
            text = self._pattern.joined_text(data) if not self._unfinished else None
            if text is None:
                texts += self._parsed_texts(data)
            else:
                plain.append(text)
        texts.append(_unescaped(b"".join(plain)))
        return texts

    def _parsed_texts(self, data: bytes) -> list[str]:
        """The texts of whole frames. An incomplete last line waits for the next call."""
        whole, self._unfinished = self._unfinished + data, b""
        if not whole.endswith((b"\n", b"\r")):
            end = whole.rfind(b"\n") + 1
            whole, self._unfinished = whole[:end], whole[end:][-MAX_UNFINISHED_BYTES:]
        texts = [text for data in _data_of(whole) for text in _texts_of(data, self._texts)]
        if self._lessons and len(texts) == 1:
            self._lessons -= 1
            delta = delta_pattern.learn_from(data, b"", 0, 0)
            if delta is not None and delta.joined_text(data) == texts[0].encode():
                self._pattern = delta
        return texts


class BodyCounter:
    """Counts a body, or the pieces of one that was too large to be held."""

    __slots__ = ("_last", "_request", "_texts", "_weight", "pending")
    expects_usage = True

    def __init__(self, request: AskedTokens, texts: TextExtractor) -> None:
        self.pending: list[bytes] = []
        self._request = request
        self._texts = texts
        self._last = b""
        self._weight: int | None = None
        """Of the pieces before the last one; None if there were none."""

    def count(self) -> None:
        for piece in self.pending:
            if self._last:
                self._weight = (self._weight or 0) + _unparsed_weight(self._last)
            self._last = piece
        self.pending.clear()

    def tokens(self, reported_input: Tokens | None) -> Tokens:
        self.count()
        if self._weight is None and len(self._last) <= MAX_PARSED_BYTES:
            weight = sample_of(_texts_of(self._last, self._texts)).weight
        else:
            weight = (self._weight or 0) + _unparsed_weight(self._last)
        return _tokens(weight, self._request, reported_input)


class NoTextCounter:
    """For a path whose answers hold no text: output is always 0."""

    __slots__ = ("_request", "pending")
    expects_usage = True

    def __init__(self, request: AskedTokens) -> None:
        self.pending: list[bytes] = []
        self._request = request

    def count(self) -> None:
        self.pending.clear()

    def tokens(self, reported_input: Tokens | None) -> Tokens:
        return _tokens(0, self._request, reported_input)


class PlainTextCounter:
    """Counts an answer that is text alone, piece by piece."""

    __slots__ = ("_request", "_weight", "pending")
    expects_usage = True

    def __init__(self, request: AskedTokens) -> None:
        self.pending: list[bytes] = []
        self._request = request
        self._weight = 0

    def count(self) -> None:
        self._weight += sum(sample_of([piece]).weight for piece in self.pending)
        self.pending.clear()

    def tokens(self, reported_input: Tokens | None) -> Tokens:
        self.count()
        return _tokens(self._weight, self._request, reported_input)


class UnbilledCounter:
    """For a path whose requests and answers are billed only as reported."""

    __slots__ = ("pending",)
    expects_usage = False

    def __init__(self) -> None:
        self.pending: list[bytes] = []

    def count(self) -> None:
        self.pending.clear()

    def tokens(self, reported_input: Tokens | None) -> Tokens:
        return Tokens()


def _tokens(weight: int, request: AskedTokens, reported_input: Tokens | None) -> Tokens:
    output = tokens_of(weight)
    return (
        Tokens(input=request.tokens, output=output)
        if reported_input is None
        else reported_input._replace(output=output)
    )


def _data_of(frames: bytes) -> list[bytes]:
    """The data lines of some frames: nearly always one line of one frame, which needs no regular expression."""
    start = 0 if frames.startswith(_DATA_NAME) else frames.find(b"\n" + _DATA_NAME) + 1
    if frames.startswith(_DATA_NAME, start) and frames.find(b"\n", start) == len(frames) - 2:
        return [frames[start + len(_DATA_NAME) : -2]]
    return _DATA.findall(frames)


def _texts_of(data: bytes, texts: TextExtractor) -> list[str]:
    """The texts of the JSON object in `data`; none if it is not one."""
    try:
        answer = orjson.loads(data) if data else None
    except orjson.JSONDecodeError:
        return []
    return texts(answer) if isinstance(answer, dict) else []


def _unescaped(text: bytes) -> str:
    """Decode the inside of JSON strings."""
    if _BACKSLASH in text:
        try:
            read: str = orjson.loads(b'"%b"' % text)
        except orjson.JSONDecodeError:  # half of a surrogate pair, or not JSON
            return text.decode("utf-8", "replace")
        return read
    return text.decode("utf-8", "replace")


def _unparsed_weight(piece: bytes) -> int:
    """The weight of part of a JSON text, counted as if all of it were output."""
    return sample_of([piece]).weight
