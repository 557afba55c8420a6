"""Reads answers that need translation, as a body or event by event: framing, bounds, and what waits for `end`.

Pure. The dialects know the meaning of members and events.
"""

from collections.abc import Generator
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

import orjson

from proxy.accounting.metering import Reported
from proxy.answers import Headers
from proxy.dialects import sse
from proxy.dialects.body_readers import MAX_BODY_BYTES
from proxy.dialects.failures import (
    ERROR_KEY,
    TELLING_MEMBERS,
    error_instead,
    error_within,
    failed_part,
    failure_details,
    is_failure,
)
from proxy.dialects.finish import FinishingReader, NothingHeld, Role, tells_usage
from proxy.dialects.middle.answer import (
    Answer,
    AnswerEvent,
    DetailsSeen,
    Failed,
    ReasoningDelta,
    RefusalDelta,
    Stopped,
    TextDelta,
    ToolCallDelta,
)
from proxy.dialects.middle.answer_stream import AnswerStream
from proxy.dialects.middle.dialect import AnswerContext, Dialect
from proxy.dialects.middle.json_slots import json_slots, restore_slots
from proxy.dialects.middle.left_out import stream_comment
from proxy.dialects.middle.stops import failure_of, fill_empty_arguments
from proxy.dialects.middle.whole_answers import GatheredAnswer, events_of
from proxy.dialects.usage.meters import METERED_MEMBERS, UsageMeter
from proxy.dialects.vendor_rules.tool_names import RenamingStreamReader, rename_calls
from proxy.errors import UpstreamCutError, UpstreamResetError
from proxy.json_text.exact_numbers import with_exact_members
from proxy.json_text.json_bounds import TooManyValuesError, holds_few_values, is_surely_within_bounds
from proxy.json_text.json_edit import Json
from proxy.json_text.large_json import Outline
from proxy.json_text.lenient_json import parse_leniently
from proxy.json_text.member_scanner import UNREAD, MemberScanner, Wanted
from proxy.json_text.segmented_body import SegmentedBody
from proxy.json_text.sliced_json import parse_in_slices
from proxy.time_slices import Uncut, at_once

MAX_EVENT_BYTES = 4 << 20
MAX_EVENT_OBJECTS = 5_000
"""An event is translated at once: each object takes up to 8 µs of the event loop."""
PING = "ping"
KEEP_ALIVE = b": ping\n\n"
"""The event that shows that a stream is alive (Messages), and a comment that shows it in any dialect."""
_OF_MODELS = ("choices", "content", "content_block", "output")
"""The members of an answer or an event that may hold JSON that the model wrote."""
_OUTPUT = frozenset(
    ("arguments", "choices", "content_block", "delta", "input", "item", "output", "part", "refusal", "text")
)
"""The members that may hold output."""
_SKELETON = (
    TELLING_MEMBERS
    | METERED_MEMBERS
    | _OUTPUT
    | {
        *(
            "id",
            "created_at",
            "incomplete_details",
            "item_id",
            "output_index",
            "content_index",
            "summary_index",
        ),
        *("message", "code", "stop_reason"),
    }
)
"""The members that are read of an event above the bounds, where they are not large themselves."""
_PARTS = (sse.HEAD, sse.MIDDLE, sse.TAIL)
_TOO_MUCH = "an event holds too much to translate"
_BEFORE_OUTPUT = frozenset(("response.created", "response.in_progress", "response.queued"))
_REPEATING = _BEFORE_OUTPUT | {"response.completed", "response.incomplete", "response.failed"}
"""Events that repeat what others said: of the request, or of the answer."""
_SAYING = (TextDelta, RefusalDelta, ReasoningDelta, ToolCallDelta)
_TOOL_CALLS = (b"tool_", b"function_call")
"""One of these stands in each event of a stream that may hold such JSON."""


class TranslatingStreamReader(FinishingReader):
    """Reads a stream of the target's dialect and returns one of the caller's.

    What a frame of the target becomes in the caller's dialect is held and let go as that frame would be.
    """

    __slots__ = (
        *("_answer", "_context", "_framer", "_has_said", "_holder", "_meter", "_reader", "_roles", "_scanner"),
        *("_skeletons", "streams"),
    )

    def __init__(
        self, target: Dialect, caller: Dialect, context: AnswerContext, meter: UsageMeter, *, is_lines: bool = False
    ) -> None:
        """`is_lines`: an event is JSON on a line of its own."""
        super().__init__()
        self._context = context
        self._framer = (sse.LineFramer if is_lines else sse.Framer)(MAX_EVENT_BYTES)
        reader = target.new_stream_reader()
        names = context.request.tool_names
        self._reader = RenamingStreamReader(reader, names) if names else reader
        self._roles = target.roles
        self.streams = context.streams is not False
        self._answer: AnswerStream | GatheredAnswer = (
            AnswerStream(caller.new_stream_writer(context)) if self.streams else GatheredAnswer(caller, context)
        )
        self._has_said = False
        """True once some output came: then an event above the bounds may repeat it."""
        self._scanner: MemberScanner | None = None
        """Reads an event above the size bound."""
        self._skeletons: list[Json] = []
        """The small members that it found."""
        self._holder = target.holder
        self._meter = meter

    @property
    def reported(self) -> Reported:
        return self._meter

    @property
    def unknown_stop(self) -> str:
        return self._answer.unknown_stop

    def feed(self, data: bytes) -> bytes:
        if self._framer.at_boundary and (frames := sse.whole_frames(data)):
            output = b"".join(map(self._piece, frames))
        else:
            output = b"".join([self._piece(piece, kind) for piece, kind in self._framer.split(data)])
        self._note()
        return output

    def waited(self) -> bytes:
        frames = super().waited()
        return frames if self.ended else frames + self._written(self._reader.finished()) + self._answer.finish()

    def end(self) -> bytes:
        rest = self._framer.flush()
        last = self._piece(rest, sse.FRAME if self._scanner is None else sse.TAIL) if rest else b""
        last += self._end_frames + self._written(self._reader.finished())
        self._end_frames = b""
        self._answer.write([DetailsSeen(self._meter.details)])
        ending = self._answer.end(self._meter.tokens)
        left_out = self._reader.left_out.names + self._context.left_out.names
        if not self.streams:
            self._context.request.left_out += left_out
            return ending
        return last + stream_comment(left_out) + ending if ending else last

    def prepare_end_in_slices(self) -> Generator[None, None, None]:
        yield from ()

    def _missing_end(self) -> bytes:
        return self._written(self._reader.done_received())

    def _piece(self, piece: bytes, kind: int = sse.FRAME) -> bytes:
        if self.ended:
            return b""
        if kind in _PARTS:
            return self._oversized(piece, kind)
        if self.failed:
            self._read_usage_after_failure(piece)
            return b""
        if kind == sse.COMMENT:
            return self._leave(piece if self.streams else b"", Role.OTHER)
        data = sse.data_of(piece)
        if data.strip() == b"[DONE]":
            return self._leave(self._written(self._reader.done_received()), Role.LAST)
        if not is_surely_within_bounds(data) or data.count(b"{") > MAX_EVENT_OBJECTS:
            return self._oversized(data, sse.TAIL)
        event = _payload_object(data)
        if event is None:
            return b""
        self._meter.observe(event)
        if event.get("type") == PING:
            return self._leave(KEEP_ALIVE if self.streams else b"", Role.OTHER)
        if any(mark in data for mark in _TOOL_CALLS):
            event = with_exact_members(event, data, _OF_MODELS)
        return self._read(event, may_fail=ERROR_KEY in data)

    def _read(self, event: Json, *, may_fail: bool) -> bytes:
        """Return the caller's bytes for an event."""
        try:
            events = self._reader.read(event)
            if may_fail:
                events = self._with_failure(events, event)
            self._has_said = self._has_said or any(isinstance(each, _SAYING) for each in events)
            output = self._written(events)
        except orjson.JSONEncodeError:  # orjson parses deeper nesting than it serializes
            raise UpstreamCutError("an event is nested too deeply to translate") from None
        return self._leave(output, self._roles.of_event(event), tells_usage(event, self._meter))

    def _written(self, events: list[AnswerEvent]) -> bytes:
        output = self._answer.write(events)
        self.failed = self._answer.failed
        return output

    def _oversized(self, piece: bytes, kind: int) -> bytes:
        """Read a part of an event above the bounds: its usage, and its end if it repeats what was said before."""
        if self._scanner is None:
            self._scanner = MemberScanner(Wanted(_SKELETON, self._holder), self._skeletons.append)
        self._scanner.feed(piece)
        if kind == sse.TAIL:
            is_whole = self._scanner.objects > 0
            self._scanner.end()
            self._scanner = None
            if not is_whole:
                for skeleton in self._skeletons:
                    self._meter.observe(skeleton)
                raise UpstreamCutError(_TOO_MUCH)
        skeletons = self._skeletons[:]
        self._skeletons.clear()
        return b"".join(map(self._skeleton, skeletons))

    def _skeleton(self, event: Json) -> bytes:
        """Read what was found of an event above the bounds. Raises `UpstreamCutError` if it says something new."""
        self._meter.observe(event)
        if self.failed:
            return b""
        kind = event.get("type")
        repeats = isinstance(kind, str) and (kind.endswith(".done") or kind in _REPEATING)
        members, unread = _without_unread(event)
        if unread and not (repeats and (self._has_said or kind in _BEFORE_OUTPUT)):
            raise UpstreamCutError(_TOO_MUCH)
        return self._read(members, may_fail="error" in event)

    def _with_failure(self, events: list[AnswerEvent], event: Json) -> list[AnswerEvent]:
        """Return what `event` says, its error last. Readers report only the failures of their own dialect."""
        part = failed_part(event, self._holder)
        if part is None or any(isinstance(each, Failed) for each in events):
            return events
        others = [each for each in events if not isinstance(each, Stopped)]
        return [*others, Failed(*failure_details(part))]

    def _read_usage_after_failure(self, piece: bytes) -> None:
        """Read usage and end alone: nothing follows a failure, but its answer is billed as reported."""
        self.ended = self._roles.of_frame(piece) is Role.LAST
        data = sse.data_of(piece)
        if not is_surely_within_bounds(data):
            return
        try:
            event = _payload_object(data)
        except UpstreamCutError:
            return
        if event is not None:
            self._meter.observe(event)


def _payload_object(data: bytes) -> Json | None:
    """The event of a frame with this payload; None if it is no object. Raises `UpstreamCutError` if it is no JSON."""
    try:
        event = orjson.loads(data) if data else None
    except orjson.JSONDecodeError:
        try:
            event = parse_leniently(data)
        except ValueError:
            raise UpstreamCutError("an event is not JSON") from None
    return event if isinstance(event, dict) else None


def _without_unread(event: Json) -> tuple[Json, bool]:
    """Return what was read of an event with large members, and whether some of the unread ones are output."""
    members = {name: value for name, value in event.items() if value is not UNREAD}
    unread = bool(_OUTPUT & (event.keys() - members.keys()))
    for name, value in members.items():
        if isinstance(value, dict) and UNREAD in value.values():
            members[name], is_output = _without_unread(value)
            unread = unread or is_output
    return members, unread


class TranslatingBodyReader(NothingHeld):
    """Reads a body of the target's dialect and returns one of the caller's."""

    __slots__ = ("_caller", "_context", "_meter", "_pieces", "_result", "_size", "_target", "failed", "unknown_stop")
    streams = False

    def __init__(self, target: Dialect, caller: Dialect, context: AnswerContext, meter: UsageMeter) -> None:
        self._target = target
        self._caller = caller
        self._context = context
        self._meter = meter
        self._pieces: list[bytes] = []
        self._size = 0
        self._result: bytes | None = None
        self.failed = False
        self.unknown_stop = ""

    @property
    def reported(self) -> Reported:
        return self._meter

    def feed(self, data: bytes) -> bytes:
        self._size += len(data)
        if self._size > MAX_BODY_BYTES:
            raise UpstreamResetError("the answer is too large to translate")
        self._pieces.append(data)
        return b""

    def prepare_end_in_slices(self) -> Generator[Uncut | None, Any, None]:
        raw = yield from SegmentedBody(*self._pieces).join_in_slices()
        self._pieces.clear()
        try:
            answer, outline = yield from parse_in_slices(raw)
        except TooManyValuesError as error:
            raise UpstreamResetError(f"the answer {error}, too many to translate") from None
        except orjson.JSONDecodeError:
            answer = yield partial(_read_leniently, raw)
            outline = None
        if isinstance(answer, list) and len(answer) == 1:
            answer = answer[0]
        if not isinstance(answer, dict):
            raise UpstreamResetError("the answer is no object")
        self._meter.observe(answer)
        failed_with = error_within(answer) or error_instead(answer)
        self.failed = failed_with is not None or is_failure(answer)
        if self.failed:  # it holds no answer to translate
            self._result = raw if failed_with is None else orjson.dumps({"error": failed_with})
            return
        translated = yield partial(self._translated, answer, raw, outline)
        self._result = (
            translated if outline is None else (yield from outline.restored_body(translated).join_in_slices())
        )

    def end(self) -> bytes:
        if self._result is None:
            at_once(self.prepare_end_in_slices())
        assert self._result is not None
        return self._result

    def _translated(self, answer: Json, raw: bytes, outline: Outline | None) -> bytes:
        answer = with_exact_members(answer, raw if outline is None else outline.text, _OF_MODELS)
        if outline is not None and not restore_slots(json_slots(answer), outline):
            raise UpstreamResetError("the answer's tool calls are too much to be translated")
        try:
            middle = self._target.read_answer(answer)
            middle.details = self._meter.details
            failure = failure_of(middle.stop)
            if failure is not None:
                self.failed = True
                return orjson.dumps({"error": {"message": failure.message, "type": failure.kind}})
            self.unknown_stop = middle.stop.word
            fill_empty_arguments(middle.parts)
            rename_calls(middle.parts, self._context.request.tool_names)
            if self._context.streams:
                return self._streamed(middle)
            body = orjson.dumps(self._caller.write_answer(middle, self._context, self._meter.tokens))
        except orjson.JSONEncodeError:  # orjson parses deeper nesting than it serializes
            raise UpstreamResetError("the answer is nested too deeply to be translated") from None
        self._context.request.left_out += middle.left_out.names + self._context.left_out.names
        return body

    def _streamed(self, answer: Answer) -> bytes:
        """Return the answer as the stream that its caller asked for."""
        stream = AnswerStream(self._caller.new_stream_writer(self._context))
        output = stream.write(events_of(answer))
        left_out = stream_comment(answer.left_out.names + self._context.left_out.names)
        return output + left_out + stream.end(self._meter.tokens)


def _read_leniently(raw: bytes) -> Any:
    """The value of a body that a strict parser refused."""
    if not holds_few_values(raw):
        raise UpstreamResetError("the answer is not JSON")
    try:
        return parse_leniently(raw)
    except ValueError:
        raise UpstreamResetError("the answer is not JSON") from None


def created_s(headers: Headers) -> int:
    """The answer's `date` header in Unix seconds; 0 if it is missing or malformed."""
    date = next((value for name, value in headers if name == "date"), "")
    try:
        return int(parsedate_to_datetime(date).timestamp())
    except (ValueError, OverflowError):
        return 0
