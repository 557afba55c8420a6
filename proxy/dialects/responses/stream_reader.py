"""Reads the events of a target's Responses stream.

Pure. Lenient: some servers leave out deltas, or the events between an item's start and its end; what a delta did not
say is read from the event that repeats the whole text.
"""

from collections.abc import Callable, Iterator

from proxy.dialects.failures import failure_details
from proxy.dialects.middle.answer import (
    AnswerEvent,
    Failed,
    PartEnded,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    Started,
    Stopped,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from proxy.dialects.middle.answer_reading import Json, integer_in, object_in, objects_in, text_in
from proxy.dialects.middle.gathering import Budget
from proxy.dialects.middle.left_out import LeftOut
from proxy.dialects.middle.request import AnswerPart, Reasoning, Text
from proxy.dialects.middle.stops import EMPTY_OBJECT
from proxy.dialects.responses.answer_reader import (
    call_of,
    created_s,
    item_parts,
    note_unread,
    reasoning_of,
    response_stop,
)

_CALLS = frozenset(("function_call", "custom_tool_call"))
_SUMMARY = "summary"
_RAW = "raw"
"""The two forms of reasoning that an item may show. The first one that comes is read."""

Place = tuple[int, int]
"""The index of an item, and the index of a part in it."""


class ResponsesStreamReader:
    """Reads one answer."""

    __slots__ = (
        *("_budget", "_calls", "_ended_calls", "_ended_items", "_has_begun", "_parts", "_places", "_places_with_text"),
        *("_reasoning", "_reasoning_chars", "_summary", "_text_chars", "_text_place", "left_out"),
    )

    def __init__(self) -> None:
        self._budget = Budget()
        self._has_begun = False
        self._places: dict[str, int] = {}
        """The place of each item, by its id, where the server does not tell."""
        self._places_with_text: set[Place] = set()
        """The parts, or calls (part 0), of which text was read."""
        self._calls: dict[int, int] = {}
        """The number of each tool call, by the index of its item."""
        self._parts: list[AnswerPart] = []
        """The refusals and the last call, which decide why the answer stopped."""
        self._ended_items: set[int] = set()
        self._ended_calls: set[str] = set()
        """The items, and the ids of the calls, that were complete before the answer was."""
        self._text_chars = self._reasoning_chars = 0
        self.left_out = LeftOut()
        self._reasoning = ""
        self._summary: Place = (-1, 0)
        self._text_place: Place = (-1, 0)

    def read(self, event: Json) -> list[AnswerEvent]:
        kind = event.get("type")
        if "output_index" not in event:
            event = self._placed(event)
        if kind == "response.output_text.delta":  # nearly all events
            return self._text(event)
        read = _EVENTS.get(kind) if isinstance(kind, str) else None
        return [] if read is None else read(self, event)

    def _placed(self, event: Json) -> Json:
        """The event with the place of its item, which some servers name by its id alone."""
        id = text_in(event, "item_id") or text_in(event.get("item"), "id")
        if not id:
            return event
        if id not in self._places:
            self._budget.spend(len(id))
            self._places[id] = len(self._places)
        return event | {"output_index": self._places[id]}

    def done_received(self) -> list[AnswerEvent]:
        """Return nothing: a Responses stream ends with an event of its own."""
        return []

    def finished(self) -> list[AnswerEvent]:
        """Return nothing: a finish is told at once."""
        return []

    def _text(self, event: Json) -> list[AnswerEvent]:
        text = event.get("delta")
        if not isinstance(text, str) or not text:
            return []
        self._text_chars += len(text)
        delta = TextDelta(text, objects_in(event, "logprobs") if event.get("logprobs") else None)
        place = _place(event)
        if place == self._text_place:
            return [delta]
        is_next_part = place[0] == self._text_place[0]
        self._text_place = place
        self._places_with_text.add(place)
        return [PartEnded(), delta] if is_next_part else [delta]

    def _begin(self, event: Json) -> list[AnswerEvent]:
        if self._has_begun:
            return []
        self._has_begun = True
        response = object_in(event, "response")
        return [Started(text_in(response, "id"), created_s(response))]

    def _text_done(self, event: Json) -> list[AnswerEvent]:
        """The whole text, if no delta said it."""
        text = text_in(event, "text")
        if not text or _place(event) in self._places_with_text:
            return []
        return self._text(event | {"delta": text})

    def _refusal(self, event: Json) -> list[AnswerEvent]:
        text = text_in(event, "delta")
        self._places_with_text.add(_place(event))
        return [RefusalDelta(text)] if text else []

    def _refusal_done(self, event: Json) -> list[AnswerEvent]:
        text = text_in(event, "refusal")
        if not text or _place(event) in self._places_with_text:
            return []
        return self._refusal(event | {"delta": text})

    def _reasoning_delta(self, event: Json, form: str, index: str) -> list[AnswerEvent]:
        text = text_in(event, "delta")
        item = _item(event)
        part = integer_in(event, index) or 0
        if not text:
            return []
        if item != self._summary[0]:
            self._summary = (item, part)
            self._reasoning = form
        elif form != self._reasoning:
            return []
        elif part != self._summary[1]:
            self._summary = (item, part)
            text = f"\n\n{text}"
        self._places_with_text.add((item, 0))
        self._reasoning_chars += len(text)
        return [ReasoningDelta(text)]

    def _summary_delta(self, event: Json) -> list[AnswerEvent]:
        return self._reasoning_delta(event, _SUMMARY, "summary_index")

    def _raw_delta(self, event: Json) -> list[AnswerEvent]:
        return self._reasoning_delta(event, _RAW, "content_index")

    def _item_added(self, event: Json) -> list[AnswerEvent]:
        item = object_in(event, "item")
        if text_in(item, "type") not in _CALLS:
            return []
        number = self._calls.setdefault(_item(event), len(self._calls))
        call = call_of(item)
        events: list[AnswerEvent] = [ToolCallStarted(number, call.id, call.name, call.custom)]
        return events + self._arguments(event, call.arguments)

    def _arguments_delta(self, event: Json) -> list[AnswerEvent]:
        return self._arguments(event, text_in(event, "delta"))

    def _arguments(self, event: Json, text: str) -> list[AnswerEvent]:
        number = self._calls.get(_item(event))
        if number is None or not text:
            return []
        self._places_with_text.add((_item(event), 0))
        return [ToolCallDelta(number, text)]

    def _arguments_done(self, event: Json) -> list[AnswerEvent]:
        if (_item(event), 0) in self._places_with_text:
            return []
        return self._arguments(event, text_in(event, "arguments") or text_in(event, "input"))

    def _part_done(self, event: Json) -> list[AnswerEvent]:
        """The end of a text; not of raw reasoning, which ends with its item."""
        part = object_in(event, "part")
        kind = text_in(part, "type")
        if kind == "refusal":
            return [*self._refusal_done(event | {"refusal": part.get("refusal")}), PartEnded()]
        text = event | {"text": part.get("text")}
        return [] if kind == "reasoning_text" else [*self._text_done(text), PartEnded()]

    def _annotated(self, event: Json) -> list[AnswerEvent]:
        self.left_out.add(f"output.{_item(event)}.content.{_place(event)[1]}.annotations")
        return []

    def _item_done(self, event: Json) -> list[AnswerEvent]:
        item = object_in(event, "item")
        kind = text_in(item, "type")
        self._ended_items.add(_item(event))
        note_unread(item, _item(event), self.left_out)
        if kind in _CALLS:
            return self._call_done(event, item)
        if kind == "reasoning":
            return self._reasoning_done(event, item)
        return self._message_done(event, item) if kind == "message" else []

    def _call_done(self, event: Json, item: Json) -> list[AnswerEvent]:
        call = call_of(item)
        self._parts.append(call)
        self._ended_calls.add(call.id)
        before = [] if _item(event) in self._calls else self._item_added({**event, "item": item | {"arguments": ""}})
        if (_item(event), 0) not in self._places_with_text:
            before += self._arguments(event, call.arguments if call.custom else call.arguments or EMPTY_OBJECT)
        return [*before, PartEnded()]

    def _reasoning_done(self, event: Json, item: Json) -> list[AnswerEvent]:
        reasoning = reasoning_of(item)
        before: list[AnswerEvent] = []
        if reasoning.text and (_item(event), 0) not in self._places_with_text:
            self._reasoning_chars += len(reasoning.text)
            before.append(ReasoningDelta(reasoning.text))
        return [*before, ReasoningEnded(reasoning) if reasoning.native else PartEnded()]

    def _message_done(self, event: Json, item: Json) -> list[AnswerEvent]:
        """The end of a message; its content, where no event before told it."""
        events: list[AnswerEvent] = []
        for number, part in enumerate(objects_in(item, "content")):
            at = {"output_index": _item(event), "content_index": number}
            if part.get("type") == "refusal":
                self._parts += item_parts({"type": "message", "content": [part]})
                events += self._refusal_done(at | part)
            else:
                events += self._text_done(at | part)
        return [*events, PartEnded()]

    def _ended(self, event: Json) -> list[AnswerEvent]:
        response = object_in(event, "response")
        output = objects_in(response, "output")
        opening = [] if self._places_with_text or self._calls else self._begin(event)
        rest = [
            each
            for place, item in self._untold(output)
            for each in self._item_done({"output_index": place, "item": item})
        ]
        parts = [part for item in output for part in item_parts(item)] or self._parts
        return [*opening, *rest, Stopped(response_stop(response, parts))]

    def _untold(self, output: list[Json]) -> Iterator[tuple[int, Json]]:
        """The items of a whole answer that no event before told, with their places.

        Some servers count places in another way in events: what was told is also known by the ids of calls, and by how
        much text there was.
        """
        parts = [part for item in output for part in item_parts(item)]
        all_text = 0 < _chars(parts, Text) <= self._text_chars
        all_reasoning = 0 < _chars(parts, Reasoning) <= self._reasoning_chars
        for place, item in enumerate(output):
            kind = text_in(item, "type")
            is_told = (
                place in self._ended_items
                or (kind == "message" and all_text)
                or (kind == "reasoning" and all_reasoning)
                or (kind in _CALLS and call_of(item).id in self._ended_calls)
            )
            if not is_told:
                yield place, item

    def _failed(self, event: Json) -> list[AnswerEvent]:
        error = object_in(object_in(event, "response"), "error")
        return [_failure(text_in(error, "code"), text_in(error, "message"))]

    def _error(self, event: Json) -> list[AnswerEvent]:
        kind, message = failure_details(event)
        return [_failure(text_in(event, "code") or kind, message)]


def _failure(kind: str, message: str) -> Failed:
    return Failed("server_error" if kind in ("", "error") else kind, message)


def _chars(parts: list[AnswerPart], kind: type[Text | Reasoning]) -> int:
    return sum(len(part.text) for part in parts if isinstance(part, kind))


def _item(event: Json) -> int:
    return integer_in(event, "output_index") or 0


def _place(event: Json) -> Place:
    return _item(event), integer_in(event, "content_index") or 0


_EVENTS: dict[str, Callable[[ResponsesStreamReader, Json], list[AnswerEvent]]] = {
    "response.created": ResponsesStreamReader._begin,
    "response.queued": ResponsesStreamReader._begin,
    "response.in_progress": ResponsesStreamReader._begin,
    "response.output_text.done": ResponsesStreamReader._text_done,
    "response.output_text.annotation.added": ResponsesStreamReader._annotated,
    "response.refusal.delta": ResponsesStreamReader._refusal,
    "response.refusal.done": ResponsesStreamReader._refusal_done,
    "response.reasoning_summary_text.delta": ResponsesStreamReader._summary_delta,
    "response.reasoning_text.delta": ResponsesStreamReader._raw_delta,
    "response.function_call_arguments.delta": ResponsesStreamReader._arguments_delta,
    "response.custom_tool_call_input.delta": ResponsesStreamReader._arguments_delta,
    "response.function_call_arguments.done": ResponsesStreamReader._arguments_done,
    "response.custom_tool_call_input.done": ResponsesStreamReader._arguments_done,
    "response.content_part.done": ResponsesStreamReader._part_done,
    "response.output_item.added": ResponsesStreamReader._item_added,
    "response.output_item.done": ResponsesStreamReader._item_done,
    "response.completed": ResponsesStreamReader._ended,
    "response.incomplete": ResponsesStreamReader._ended,
    "response.failed": ResponsesStreamReader._failed,
    "error": ResponsesStreamReader._error,
}
