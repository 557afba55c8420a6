"""The two ways an answer is read when it must be told in the other dialect: whole, or event by event.

Pure. What the events mean is a `Translation`'s; here are the framing, the bounds and what waits for `end`.
"""

from collections.abc import Callable, Generator
from email.utils import parsedate_to_datetime
from typing import Protocol

import orjson

from proxy.accounting.metering import Reported
from proxy.dialects import sse
from proxy.dialects.failures import is_failure, reports_failure
from proxy.dialects.usage import UsageMeter
from proxy.dialects.whole_answers import MAX_BODY_BYTES
from proxy.exchange import Headers, UpstreamCutError, UpstreamResetError
from proxy.json_text.json_bounds import TooManyValuesError, is_surely_within_bounds
from proxy.json_text.json_edit import Json
from proxy.json_text.large_json import Outline
from proxy.json_text.segmented_body import SegmentedBody
from proxy.json_text.sliced_json import parse_in_slices
from proxy.time_slices import at_once

MAX_EVENT_BYTES = 4 << 20
MAX_ARGUMENTS_BYTES = 4 << 20
MAX_ARGUMENTS_BRACKETS = 50_000
"""Of all tool calls together, in a text that has placeholders: they are parsed at once."""

Slot = tuple[Json, str]
"""An object, and the name of one of its members."""


class Translation(Protocol):
    """One answer's events on their way into the other dialect."""

    @property
    def reported(self) -> Reported: ...

    def event(self, event: Json) -> bytes:
        """What the caller is told of it, now."""
        ...

    def done(self) -> None:
        """`[DONE]` came."""
        ...

    def last(self) -> bytes:
        """What closes the caller's stream; nothing where upstream's own was not closed."""
        ...


class TranslatingStreamReader:
    """Events of the target's dialect in, events of the caller's out."""

    __slots__ = ("_framer", "_translation", "failed")
    streams = True

    def __init__(self, translation: Translation) -> None:
        self._framer = sse.Framer(MAX_EVENT_BYTES)
        self._translation = translation
        self.failed = False

    @property
    def reported(self) -> Reported:
        return self._translation.reported

    def feed(self, data: bytes) -> bytes:
        if self._framer.at_boundary and sse.is_one_frame(data):
            return self._piece(data, sse.FRAME)
        return b"".join([self._piece(piece, kind) for piece, kind in self._framer.split(data)])

    def end(self) -> bytes:
        rest = self._framer.rest()
        return (self._piece(rest, sse.FRAME) if rest else b"") + self._translation.last()

    def prepare_end_in_slices(self) -> Generator[None, None, None]:
        yield from ()

    def _piece(self, piece: bytes, kind: int) -> bytes:
        if kind == sse.COMMENT:
            return piece
        if kind != sse.FRAME:
            raise UpstreamCutError("an event is too large to translate")
        data = sse.data_of(piece)
        if data.strip() == b"[DONE]":
            self._translation.done()
            return b""
        if not is_surely_within_bounds(data):
            raise UpstreamCutError("an event holds too much to translate")
        try:
            event = orjson.loads(data) if data else None
        except orjson.JSONDecodeError:
            raise UpstreamCutError("an event is not JSON") from None
        if not isinstance(event, dict):
            return b""
        self.failed = self.failed or reports_failure(event)
        try:
            return self._translation.event(event)
        except orjson.JSONEncodeError:  # it reads deeper than it writes
            raise UpstreamCutError("an event is nested too deeply to translate") from None


class TranslatingBodyReader:
    """A whole answer of the target's dialect in, one of the caller's out."""

    __slots__ = ("_held", "_meter", "_size", "_told", "_translate", "failed")
    streams = False

    def __init__(self, translate: Callable[[Json], Json], meter: UsageMeter) -> None:
        self._translate = translate
        self._meter = meter
        self._held: list[bytes] = []
        self._size = 0
        self._told: bytes | None = None
        self.failed = False

    @property
    def reported(self) -> Reported:
        return self._meter

    def feed(self, data: bytes) -> bytes:
        self._size += len(data)
        if self._size > MAX_BODY_BYTES:
            raise UpstreamResetError("the answer is too large to translate")
        self._held.append(data)
        return b""

    def prepare_end_in_slices(self) -> Generator[None, None, None]:
        raw = yield from SegmentedBody(*self._held).join_in_slices()
        self._held.clear()
        try:
            answer, outline = yield from parse_in_slices(raw)
        except TooManyValuesError as error:
            raise UpstreamResetError(f"the answer {error}, too many to translate") from None
        except orjson.JSONDecodeError:
            raise UpstreamResetError("the answer is not JSON") from None
        if not isinstance(answer, dict):
            raise UpstreamResetError("the answer is no object")
        self.failed = is_failure(answer)
        if self.failed:  # no answer could be made of it
            self._told = raw
            return
        self._meter.observe(answer)
        told = self._tell(answer, outline)
        self._told = told if outline is None else (yield from outline.restored_body(told).join_in_slices())

    def end(self) -> bytes:
        if self._told is None:
            at_once(self.prepare_end_in_slices())
        assert self._told is not None
        return self._told

    def _tell(self, answer: Json, outline: Outline | None) -> bytes:
        messages = [answer, *(object_in(choice, "message") for choice in objects_in(answer, "choices"))]
        if outline is not None and not restore_slots(json_text_slots(messages), outline):
            raise UpstreamResetError("the answer's tool calls are too much to be translated")
        try:
            return orjson.dumps(self._translate(answer))
        except orjson.JSONEncodeError:  # it reads deeper than it writes
            raise UpstreamResetError("the answer is nested too deeply to be translated") from None


def created_s(headers: Headers) -> int:
    """When upstream says that it answered, in Unix seconds; 0 when it does not say."""
    date = next((value for name, value in headers if name == "date"), "")
    try:
        return int(parsedate_to_datetime(date).timestamp())
    except (ValueError, OverflowError):
        return 0


def text_in(container: object, name: str) -> str:
    """A member that should be text, of something that should be an object; empty when it is not so."""
    value = container.get(name) if isinstance(container, dict) else None
    return value if isinstance(value, str) else ""


def index_in(container: Json) -> int:
    value = container.get("index")
    return value if isinstance(value, int) else 0


def object_in(container: object, name: str) -> Json:
    value = container.get(name) if isinstance(container, dict) else None
    return value if isinstance(value, dict) else {}


def objects_in(container: object, name: str) -> list[Json]:
    value = container.get(name) if isinstance(container, dict) else None
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def json_text_slots(messages: list[Json]) -> list[Slot]:
    """Where messages of either dialect hold what a translation reads from, or writes into, JSON inside a string."""
    calls = (call for message in messages if "tool_calls" in message for call in objects_in(message, "tool_calls"))
    blocks = (block for message in messages if "content" in message for block in objects_in(message, "content"))
    slots = [(object_in(call, "function"), "arguments") for call in calls] + [(block, "input") for block in blocks]
    return [(holder, name) for holder, name in slots if name in holder]


def restore_slots(slots: list[Slot], outline: Outline) -> bool:
    """Put values in the places of their placeholders. False, with nothing changed, where they are too much for that."""
    try:
        text = orjson.dumps([holder[name] for holder, name in slots])
        values = orjson.loads(outline.restored_text(text, MAX_ARGUMENTS_BYTES))
    except (ValueError, orjson.JSONEncodeError):  # too much, or nested deeper than it writes
        return False
    if sum(value.count("{") + value.count("[") for value in values if isinstance(value, str)) > MAX_ARGUMENTS_BRACKETS:
        return False
    for (holder, name), value in zip(slots, values, strict=True):
        holder[name] = value
    return True
