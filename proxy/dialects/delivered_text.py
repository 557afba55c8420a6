"""Counts what a caller has been given of an answer, for the bill where its provider reports nothing.

Pure. Nothing is looked at until somebody asks, or until some KiB wait: a stream whose usage is reported pays next to
nothing. What is counted is the caller's own bytes, in the caller's dialect, however they came about.
"""

import re

import orjson

from policy.billing import Tokens
from policy.token_estimate import sample_of, tokens_of, weight_of
from proxy.dialects import delta_pattern
from proxy.dialects.answer_text import TextExtractor
from proxy.dialects.request_text import RequestTokens

HELD_BYTES = 8 << 10
LESSONS = 8
"""Of so many deltas it is asked what they have in common."""
MAX_UNFINISHED_BYTES = 64 << 10
MAX_PARSED_BYTES = 1 << 20
"""A whole answer above this is weighed as it is: parsing it would hold the event loop."""
_DATA = re.compile(rb"(?:\A|[\r\n])data:[ ]?([^\r\n]*)")
_DATA_NAME = b"data: "
_BACKSLASH = 0x5C


class StreamCounter:
    """Frames of a stream."""

    __slots__ = ("_asked", "_delta", "_held", "_lessons", "_size", "_texts", "_unfinished", "_weight")

    def __init__(self, asked: RequestTokens, texts: TextExtractor) -> None:
        self._asked = asked
        self._texts = texts
        self._held: list[bytes] = []
        self._size = 0
        self._weight = 0
        self._unfinished = b""
        self._delta = delta_pattern.MATCHES_NOTHING
        self._lessons = LESSONS

    def add(self, told: bytes) -> None:
        self._held.append(told)
        self._size += len(told)
        if self._size > HELD_BYTES:
            self._weigh()

    def tokens(self, given: Tokens | None) -> Tokens:
        self._weigh()
        unfinished = "".join(_texts_of(self._unfinished, self._texts))  # a body without a line's end, not called JSON
        return _tokens(self._weight + weight_of(unfinished), self._asked, given)

    def _weigh(self) -> None:
        held, self._held, self._size = self._held, [], 0
        if not held:
            return
        plain = self._delta.texts(held) if not self._unfinished else None
        texts = [_unescaped(plain)] if plain is not None else self._texts_one_by_one(held)
        self._weight += weight_of("".join(texts))

    def _texts_one_by_one(self, held: list[bytes]) -> list[str]:
        plain: list[bytes] = []
        texts: list[str] = []
        for told in held:
            text = self._delta.told(told) if not self._unfinished else None
            if text is None:
                texts += self._looked_at(told)
            else:
                plain.append(text)
        texts.append(_unescaped(b"".join(plain)))
        return texts

    def _looked_at(self, told: bytes) -> list[str]:
        """The texts of some frames, or of parts of frames where no one has cut them."""
        whole, self._unfinished = self._unfinished + told, b""
        if not whole.endswith((b"\n", b"\r")):
            end = whole.rfind(b"\n") + 1
            whole, self._unfinished = whole[:end], whole[end:][-MAX_UNFINISHED_BYTES:]
        texts = [text for data in _data_of(whole) for text in _texts_of(data, self._texts)]
        if self._lessons and len(texts) == 1:
            self._lessons -= 1
            delta = delta_pattern.learn_from(told, b"", 0, 0)
            if delta is not None and delta.told(told) == texts[0].encode():
                self._delta = delta
        return texts


class BodyCounter:
    """A whole answer; of one that was too large to be held whole, its pieces."""

    __slots__ = ("_asked", "_last", "_texts", "_weight")

    def __init__(self, asked: RequestTokens, texts: TextExtractor) -> None:
        self._asked = asked
        self._texts = texts
        self._last = b""
        self._weight: int | None = None
        """Of the pieces before the last one; None: there was none."""

    def add(self, told: bytes) -> None:
        if self._last:
            self._weight = (self._weight or 0) + _weight_as_it_is(self._last)
        self._last = told

    def tokens(self, given: Tokens | None) -> Tokens:
        if self._weight is None and len(self._last) <= MAX_PARSED_BYTES:
            weight = sample_of(_texts_of(self._last, self._texts)).weight
        else:
            weight = (self._weight or 0) + _weight_as_it_is(self._last)
        return _tokens(weight, self._asked, given)


class NoTextCounter:
    """Of a path whose answers hold no text: all output is 0."""

    __slots__ = ("_asked",)

    def __init__(self, asked: RequestTokens) -> None:
        self._asked = asked

    def add(self, told: bytes) -> None:
        """Counts for nothing."""

    def tokens(self, given: Tokens | None) -> Tokens:
        return _tokens(0, self._asked, given)


def _tokens(weight: int, asked: RequestTokens, given: Tokens | None) -> Tokens:
    output = tokens_of(weight)
    return Tokens(asked.tokens, output) if given is None else given._replace(output=output)


def _data_of(frames: bytes) -> list[bytes]:
    """The data lines of some frames; nearly always it is one frame, and has one."""
    start = 0 if frames.startswith(_DATA_NAME) else frames.find(b"\n" + _DATA_NAME) + 1
    if frames.startswith(_DATA_NAME, start) and frames.find(b"\n", start) == len(frames) - 2:
        return [frames[start + len(_DATA_NAME) : -2]]
    return _DATA.findall(frames)


def _texts_of(data: bytes, texts: TextExtractor) -> list[str]:
    """What the JSON object in `data` says; nothing where it is none."""
    try:
        answer = orjson.loads(data) if data else None
    except orjson.JSONDecodeError:
        return []
    return texts(answer) if isinstance(answer, dict) else []


def _unescaped(text: bytes) -> str:
    """What stood between the quotes of JSON strings."""
    if _BACKSLASH in text:
        try:
            read: str = orjson.loads(b'"%b"' % text)
        except orjson.JSONDecodeError:  # half of a surrogate pair, or nothing that was JSON
            return text.decode("utf-8", "replace")
        return read
    return text.decode("utf-8", "replace")


def _weight_as_it_is(piece: bytes) -> int:
    """What a part of a JSON text weighs, as if all of it had been said."""
    return sample_of([piece]).weight
