"""Counts the output delivered to a caller, for the bill of an answer whose provider reports no usage.

Pure. Counts the caller's own bytes, in the caller's dialect. Bytes are pending until somebody has them
counted, so a stream whose usage is reported costs next to nothing.

See docs/reference/events-and-webhooks.md#token-counts.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from policy.billing import NO_DETAILS, Details, Tokens
from policy.token_estimate import sample_of, tokens_of, weight_of
from proxy.accounting.answer_form import Form, form_of
from proxy.accounting.metering import DeliveredCounter
from proxy.dialects import delta_pattern
from proxy.dialects.counting.answer_text import TextExtractor
from proxy.dialects.failures import OUTPUT_MEMBERS
from proxy.json_text.json_bounds import SMALL_BYTES
from proxy.json_text.lenient_json import values_that_came

LESSONS = 8
"""Number of deltas that are tried as the pattern for the others."""
MAX_UNFINISHED_BYTES = 64 << 10
MAX_PARSED_BYTES = 1 << 20
"""A larger body is weighed without parsing it, which would block the event loop."""
_DATA = re.compile(rb"(?:\A|[\r\n])data:[ ]?([^\r\n]*)")
_DATA_NAME = b"data: "
_BACKSLASH = 0x5C
_DONE = b"[DONE]"
_BETWEEN = b"\0 \t\r\n,"
_OBJECTS = (b"{", b"[")
_OF_DIALECTS = tuple(b'"%b"' % name.encode() for name in (*OUTPUT_MEMBERS, "error", "text"))
"""Members of which every answer of a dialect has one, though it may be empty."""
_TELLING_BYTES = 64
"""The first bytes that tell the form of an answer."""


class AskedTokens(Protocol):
    """The input tokens of a request."""

    @property
    def tokens(self) -> int: ...

    @property
    def media(self) -> Details:
        """The sound and the pictures in them."""
        ...


@dataclass(frozen=True, slots=True)
class FixedTokens:
    """The input of a request that is not read."""

    tokens: int
    media: Details = NO_DETAILS


class StreamCounter:
    """Counts the frames of a stream."""

    __slots__ = ("_lessons", "_long_line", "_pattern", "_request", "_texts", "_unfinished", "_weight", "pending")
    expects_usage = True

    def __init__(self, request: AskedTokens, texts: TextExtractor) -> None:
        self._request = request
        self._texts = texts
        self.pending: list[bytes] = []
        self._weight = 0
        self._unfinished = b""
        self._long_line: bool | None = None
        """True in a line too long to be held that is output, False in another such line; else None."""
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
        partial_texts = [text for data in _data_of(self._unfinished) for text in _texts_of(data, self._texts)]
        return _tokens(self._weight + weight_of("".join(partial_texts)), self._request, reported_input)

    @property
    def media(self) -> Details:
        return self._request.media

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
        """Return the texts of whole frames. An incomplete last line waits for the next call."""
        before: list[str] = []
        if self._long_line is not None:
            rest, end, data = data.partition(b"\n")
            before = [rest.decode("utf-8", "replace")] if self._long_line else []
            self._long_line = None if end else self._long_line
        whole = self._unfinished + data
        self._unfinished = b""
        if not whole.endswith((b"\n", b"\r")):
            end_at = whole.rfind(b"\n") + 1
            self._unfinished = whole[end_at:]
            whole = whole[:end_at]
        texts = before + [text for data in _data_of(whole) for text in _texts_of(data, self._texts)]
        if len(self._unfinished) > MAX_UNFINISHED_BYTES:
            partial_texts = [text for data in _data_of(self._unfinished) for text in _texts_of(data, self._texts)]
            self._long_line = bool(partial_texts)
            self._unfinished = b""
            texts += partial_texts
        if self._lessons and len(texts) == 1:
            self._lessons -= 1
            delta = delta_pattern.learn_from(data, b"", 0, 0)
            if delta is not None and delta.joined_text(data) == texts[0].encode():
                self._pattern = delta
        return texts


class FormCounter:
    """Counts an answer by what it is, as its first bytes tell."""

    __slots__ = ("_counter", "_of_form", "pending")

    def __init__(self, of_form: Callable[[Form], DeliveredCounter]) -> None:
        """`of_form`: makes the counter of answers of a form."""
        self._of_form = of_form
        self.pending: list[bytes] = []
        self._counter: DeliveredCounter | None = None

    @property
    def expects_usage(self) -> bool:
        return (self._chosen() or self._of_form(Form.OTHER)).expects_usage

    def count(self) -> None:
        counter = self._chosen()
        if counter is not None:
            counter.pending.extend(self.pending)
            self.pending.clear()
            counter.count()

    def tokens(self, reported_input: Tokens | None) -> Tokens:
        self.count()
        return (self._counter or self._of_form(Form.OTHER)).tokens(reported_input)

    @property
    def media(self) -> Details:
        return (self._counter or self._of_form(Form.OTHER)).media

    def _chosen(self) -> DeliveredCounter | None:
        """The counter of the answer's form. None as long as nothing but white space came."""
        if self._counter is None:
            form = form_of(b"".join(piece[:_TELLING_BYTES] for piece in self.pending[:_TELLING_BYTES]))
            self._counter = self._of_form(form) if form is not None else None
        return self._counter


def text_counter(request: AskedTokens, texts: TextExtractor, stream: DeliveredCounter | None = None) -> FormCounter:
    """Counts the text of an answer: of a stream, of JSON, or of text alone. `stream`: the counter of a stream."""

    def of_form(form: Form) -> DeliveredCounter:
        if form is Form.STREAM:
            return stream or StreamCounter(request, texts)
        return BodyCounter(request, texts) if form is Form.JSON else PlainTextCounter(request)

    return FormCounter(of_form)


class BodyCounter:
    """Counts a body, or the pieces of one that was too large to be held."""

    __slots__ = ("_request", "_rest", "_texts", "_weight", "pending")
    expects_usage = True

    def __init__(self, request: AskedTokens, texts: TextExtractor) -> None:
        self.pending: list[bytes] = []
        self._request = request
        self._texts = texts
        self._rest = b""
        """The text that is not weighed yet."""
        self._weight = 0

    def count(self) -> None:
        for piece in self.pending:
            if self._rest and len(self._rest) + len(piece) > SMALL_BYTES:
                end = self._rest.rfind(b"\n") + 1 or len(self._rest)
                self._weight += self._weight_of(self._rest[:end])
                self._rest = self._rest[end:]
            self._rest += piece
        self.pending.clear()

    def tokens(self, reported_input: Tokens | None) -> Tokens:
        self.count()
        return _tokens(self._weight + self._weight_of(self._rest), self._request, reported_input)

    @property
    def media(self) -> Details:
        return self._request.media

    def _weight_of(self, piece: bytes) -> int:
        """The weight of the texts in a piece. A piece that has not the dialect's form counts as if all were output."""
        if len(piece) > MAX_PARSED_BYTES or (self._weight and not piece.lstrip(_BETWEEN).startswith(_OBJECTS)):
            return _unparsed_weight(piece)
        texts = _texts_of(piece, self._texts)
        if not texts and not any(name in piece for name in _OF_DIALECTS):
            return _unparsed_weight(piece)
        return sample_of(texts).weight


class NoTextCounter:
    """A counter for a path whose answers hold no text: output is always 0."""

    __slots__ = ("_request", "pending")
    expects_usage = True

    def __init__(self, request: AskedTokens) -> None:
        self.pending: list[bytes] = []
        self._request = request

    def count(self) -> None:
        self.pending.clear()

    def tokens(self, reported_input: Tokens | None) -> Tokens:
        return _tokens(0, self._request, reported_input)

    @property
    def media(self) -> Details:
        return self._request.media


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

    @property
    def media(self) -> Details:
        return self._request.media


class UnbilledCounter:
    """A counter for a path whose requests and answers are billed only as reported."""

    __slots__ = ("pending",)
    expects_usage = False
    media = NO_DETAILS

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
    """The texts of the JSON in `data`. What is no JSON is text itself."""
    if not data or data.strip() == _DONE:
        return []
    try:
        values = [orjson.loads(data)]
    except orjson.JSONDecodeError:
        values = values_that_came(data) if len(data) <= SMALL_BYTES else []
    if not values:
        return [data.decode("utf-8", "replace")]
    return [text for value in values for text in _texts_of_value(value, texts)]


def _texts_of_value(value: Any, texts: TextExtractor) -> list[str]:
    if isinstance(value, dict):
        return texts(value)
    if isinstance(value, list):
        return [text for item in value if isinstance(item, dict) for text in texts(item)]
    return [value] if isinstance(value, str) else []


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
