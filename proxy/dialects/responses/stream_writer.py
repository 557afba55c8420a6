"""Writes a caller's Responses stream. Its last event repeats the whole answer, as `write_answer` would write it.

Pure. Raises `UpstreamCutError` for an answer too large to repeat.
"""

from collections.abc import Callable
from typing import Any

import orjson

from policy.billing import NO_DETAILS, Tokens
from proxy.dialects.middle.answer import (
    AnswerEvent,
    DetailsSeen,
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
from proxy.dialects.middle.dialect import AnswerContext
from proxy.dialects.middle.gathering import Budget
from proxy.dialects.middle.part_order import PartOrder
from proxy.dialects.middle.reading import Json
from proxy.dialects.middle.request import ToolCall
from proxy.dialects.responses.answer_writer import begun_response, ended_members, incomplete_reason, usage
from proxy.dialects.responses.open_items import (
    Frames,
    OpenItem,
    OpenMessage,
    OpenReasoning,
    OpenToolCall,
)
from proxy.dialects.responses.output_items import (
    COMPLETED,
    INCOMPLETE,
    CallItems,
    extra_item,
    id_of_call,
    item_ids,
    sealed_block,
    shows_summaries,
    with_bytes,
)

_ERROR_CODES = {
    "rate_limit_error": "rate_limit_exceeded",
    "rate_limit_exceeded": "rate_limit_exceeded",
    "invalid_request_error": "invalid_prompt",
    "invalid_prompt": "invalid_prompt",
}
"""The dialect's codes of failures; all others are `server_error`."""


class ResponsesStreamWriter:
    """Writes one answer."""

    __slots__ = (
        *("_budget", "_calls", "_context", "_details", "_frames", "_ids", "_open", "_order", "_output"),
        *("_refused", "_response", "_shows_summaries", "_stop"),
    )

    def __init__(self, context: AnswerContext) -> None:
        self._context = context
        self._calls = CallItems(context.request.tools)
        self._budget = Budget()
        self._order = PartOrder(self._budget)
        self._frames = Frames()
        self._ids = item_ids("", 0)
        self._response: Json = {}
        """The response as the first event has it; empty before that."""
        self._output: list[Json] = []
        """The items that are complete."""
        self._open: OpenItem | None = None
        self._refused = False
        self._shows_summaries = shows_summaries(context.request)
        self._stop = ""
        self._details = NO_DETAILS

    def write(self, events: list[AnswerEvent]) -> bytes:
        for event in self._order.feed(events):
            _WRITERS[type(event)](self, event)
        return self._frames.drain()

    def finish(self) -> bytes:
        return b""  # only the last event tells it, which holds the usage

    def closing(self, tokens: Tokens | None) -> bytes:
        reason = incomplete_reason(self._stop, refused=self._refused)
        ended = ended_members(reason, self._output, usage(tokens, self._details))
        kind = "response.incomplete" if reason else "response.completed"
        self._frames.add(kind, {"response": self._response | ended})
        return self._frames.drain()

    def _started(self, event: Started) -> None:
        if self._response:
            return
        self._ids = item_ids(event.id, event.created_s or self._context.created_s)
        self._response = begun_response(event.id, event.created_s, self._context)
        serialized = orjson.dumps({"response": self._response})[1:]
        self._frames.add_serialized("response.created", serialized)
        self._frames.add_serialized("response.in_progress", serialized)

    def _text(self, event: TextDelta) -> None:
        message = self._open if type(self._open) is OpenMessage else self._opened_message()
        message.text(event.text, with_bytes(event.logprobs) if event.logprobs else [])

    def _refusal(self, event: RefusalDelta) -> None:
        self._refused = True
        message = self._open if isinstance(self._open, OpenMessage) else self._opened_message()
        message.refusal(event.text)

    def _reasoning(self, event: ReasoningDelta) -> None:
        item = self._reasoning_item()
        if self._shows_summaries:
            item.text(event.text)

    def _reasoning_ended(self, event: ReasoningEnded) -> None:
        reasoning = event.reasoning
        is_new = not isinstance(self._open, OpenReasoning) or self._open.ended
        item = self._reasoning_item()
        if is_new and reasoning.text and self._shows_summaries:
            item.text(reasoning.text)
        item.sealed = sealed_block(reasoning, self._context.seals)
        item.ended = True

    def _call_started(self, event: ToolCallStarted) -> None:
        self._close(COMPLETED)
        self._started(Started(""))
        call = ToolCall(id_of_call(event.id, self._ids, len(self._output)), event.name, "", event.custom)
        if event.extra is not None:
            self._add_whole(
                extra_item(self._ids.of("rs", len(self._output)), call.id, event.extra, self._context.seals)
            )
        place = (self._ids.of(self._calls.prefix(call), len(self._output)), len(self._output))
        self._open = OpenToolCall(self._frames, place, call, self._calls, self._budget)

    def _call_delta(self, event: ToolCallDelta) -> None:
        if isinstance(self._open, OpenToolCall):
            self._open.arguments(event.text)

    def _part_ended(self, event: PartEnded) -> None:
        if self._open is not None:
            self._open.ended = True

    def _details_seen(self, event: DetailsSeen) -> None:
        self._details = event.details

    def _stopped(self, event: Stopped) -> None:
        self._started(Started(""))
        self._stop = event.stop.reason
        self._close(INCOMPLETE if incomplete_reason(self._stop, refused=self._refused) else COMPLETED)

    def _failed(self, event: Failed) -> None:
        self._started(Started(""))
        error = {"code": _ERROR_CODES.get(event.kind, "server_error"), "message": event.message}
        self._frames.add("error", error | {"param": None})
        ended = {"status": "failed", "error": error, "output": self._output}
        self._frames.add("response.failed", {"response": self._response | ended})

    def _opened_message(self) -> OpenMessage:
        self._close(COMPLETED)
        self._started(Started(""))
        index = len(self._output)
        self._open = message = OpenMessage(self._frames, self._ids.of("msg", index), index, self._budget)
        return message

    def _reasoning_item(self) -> OpenReasoning:
        """The open reasoning item, or a new one."""
        if isinstance(self._open, OpenReasoning) and not self._open.ended:
            return self._open
        self._close(COMPLETED)
        self._started(Started(""))
        index = len(self._output)
        self._open = item = OpenReasoning(self._frames, self._ids.of("rs", index), index, self._budget)
        return item

    def _add_whole(self, item: Json) -> None:
        """An item without deltas."""
        members = {"output_index": len(self._output), "item": item}
        self._frames.add("response.output_item.added", members)
        self._frames.add("response.output_item.done", members)
        self._output.append(item)

    def _close(self, status: str) -> None:
        if self._open is not None:
            self._output.append(self._open.end(status))
            self._open = None


_WRITERS: dict[type, Callable[[ResponsesStreamWriter, Any], None]] = {
    TextDelta: ResponsesStreamWriter._text,
    ToolCallDelta: ResponsesStreamWriter._call_delta,
    ReasoningDelta: ResponsesStreamWriter._reasoning,
    RefusalDelta: ResponsesStreamWriter._refusal,
    Started: ResponsesStreamWriter._started,
    ReasoningEnded: ResponsesStreamWriter._reasoning_ended,
    ToolCallStarted: ResponsesStreamWriter._call_started,
    PartEnded: ResponsesStreamWriter._part_ended,
    DetailsSeen: ResponsesStreamWriter._details_seen,
    Stopped: ResponsesStreamWriter._stopped,
    Failed: ResponsesStreamWriter._failed,
}
