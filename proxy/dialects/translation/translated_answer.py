"""Reads answers that need translation, as a body or event by event: framing, bounds, and what waits for `end`.

Pure. The translators know the meaning of members and events.
"""

from collections.abc import Callable, Generator
from email.utils import parsedate_to_datetime
from typing import Protocol

import orjson

from proxy.accounting.metering import Reported
from proxy.dialects import sse
from proxy.dialects.body_readers import MAX_BODY_BYTES
from proxy.dialects.failures import is_failure, reports_failure
from proxy.dialects.usage import UsageMeter
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
"""Bounds on all tool calls of a text with placeholders: they are restored and parsed in one step."""

Slot = tuple[Json, str]
"""An object and the name of one of its members."""


class StreamTranslator(Protocol):
    """Translates the events of one answer."""

    @property
    def reported(self) -> Reported: ...

    def translate(self, event: Json) -> bytes:
        """The caller's bytes for this event; may be empty."""
        ...

    def done_received(self) -> None:
        """`[DONE]` was received."""
        ...

    def closing_events(self) -> bytes:
        """The events that end the caller's stream; empty if the upstream's stream did not end properly."""
        ...


class TranslatingStreamReader:
    """Reads a stream of the target's dialect and returns one of the caller's."""

    __slots__ = ("_framer", "_translator", "failed")
    streams = True

    def __init__(self, translator: StreamTranslator) -> None:
        self._framer = sse.Framer(MAX_EVENT_BYTES)
        self._translator = translator
        self.failed = False

    @property
    def reported(self) -> Reported:
        return self._translator.reported

    def feed(self, data: bytes) -> bytes:
        if self._framer.at_boundary and sse.is_one_frame(data):
            return self._piece(data, sse.FRAME)
        return b"".join([self._piece(piece, kind) for piece, kind in self._framer.split(data)])

    def end(self) -> bytes:
        rest = self._framer.flush()
        return (self._piece(rest, sse.FRAME) if rest else b"") + self._translator.closing_events()

    def prepare_end_in_slices(self) -> Generator[None, None, None]:
        yield from ()

    def _piece(self, piece: bytes, kind: int) -> bytes:
        if kind == sse.COMMENT:
            return piece
        if kind != sse.FRAME:
            raise UpstreamCutError("an event is too large to translate")
        data = sse.data_of(piece)
        if data.strip() == b"[DONE]":
            self._translator.done_received()
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
            return self._translator.translate(event)
        except orjson.JSONEncodeError:  # orjson parses deeper nesting than it serializes
            raise UpstreamCutError("an event is nested too deeply to translate") from None


class TranslatingBodyReader:
    """Reads a body of the target's dialect and returns one of the caller's."""

    __slots__ = ("_held", "_meter", "_result", "_size", "_translate", "failed")
    streams = False

    def __init__(self, translate: Callable[[Json], Json], meter: UsageMeter) -> None:
        self._translate = translate
        self._meter = meter
        self._held: list[bytes] = []
        self._size = 0
        self._result: bytes | None = None
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
        if self.failed:  # it holds no answer to translate
            self._result = raw
            return
        self._meter.observe(answer)
        translated = self._translated(answer, outline)
        self._result = (
            translated if outline is None else (yield from outline.restored_body(translated).join_in_slices())
        )

    def end(self) -> bytes:
        if self._result is None:
            at_once(self.prepare_end_in_slices())
        assert self._result is not None
        return self._result

    def _translated(self, answer: Json, outline: Outline | None) -> bytes:
        messages = [answer, *(object_in(choice, "message") for choice in objects_in(answer, "choices"))]
        if outline is not None and not restore_slots(json_text_slots(messages), outline):
            raise UpstreamResetError("the answer's tool calls are too much to be translated")
        try:
            return orjson.dumps(self._translate(answer))
        except orjson.JSONEncodeError:  # orjson parses deeper nesting than it serializes
            raise UpstreamResetError("the answer is nested too deeply to be translated") from None


def created_s(headers: Headers) -> int:
    """The answer's `date` header in Unix seconds; 0 if it is missing or malformed."""
    date = next((value for name, value in headers if name == "date"), "")
    try:
        return int(parsedate_to_datetime(date).timestamp())
    except (ValueError, OverflowError):
        return 0


def text_in(container: object, name: str) -> str:
    """A member of an object if it is text; else empty."""
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
    """The members of messages that are JSON text in one dialect and an object in the other: arguments, inputs."""
    calls = (call for message in messages if "tool_calls" in message for call in objects_in(message, "tool_calls"))
    blocks = (block for message in messages if "content" in message for block in objects_in(message, "content"))
    slots = [(object_in(call, "function"), "arguments") for call in calls] + [(block, "input") for block in blocks]
    return [(holder, name) for holder, name in slots if name in holder]


def restore_slots(slots: list[Slot], outline: Outline) -> bool:
    """Restore placeholders in these members, in place. False, with nothing changed, if they exceed the bounds."""
    try:
        text = orjson.dumps([holder[name] for holder, name in slots])
        values = orjson.loads(outline.restored_text(text, MAX_ARGUMENTS_BYTES))
    except (ValueError, orjson.JSONEncodeError):  # above a bound, or nested too deeply to serialize
        return False
    if sum(value.count("{") + value.count("[") for value in values if isinstance(value, str)) > MAX_ARGUMENTS_BRACKETS:
        return False
    for (holder, name), value in zip(slots, values, strict=True):
        holder[name] = value
    return True
