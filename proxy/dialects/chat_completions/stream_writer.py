"""Writes the events of an answer as the stream of a Chat Completions caller.

Pure. A delta is prepared bytes around its text: this runs once per chunk.
"""

from collections.abc import Callable
from typing import Any

import orjson

from policy.billing import NO_DETAILS, Tokens
from proxy.dialects.chat_completions.answer_form import (
    answer_id,
    custom_input,
    custom_names,
    finish_reason,
    written_usage,
)
from proxy.dialects.chat_completions.reasoning import BLOCK_SEPARATOR, written_details
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
from proxy.dialects.middle.gathering import Budget, Gathered
from proxy.dialects.middle.reading import Json

_DONE = b"data: [DONE]\n\n"
_CHOICE = b'[{"index":0,"delta":'


class ChatStreamWriter:
    """Writes one answer."""

    __slots__ = (
        *("_after_delta", "_before_delta", "_budget", "_context", "_custom_calls", "_customs", "_details"),
        *("_detail_count", "_has_reasoned", "_has_refused", "_in_reasoning", "_usage_null"),
    )

    def __init__(self, context: AnswerContext) -> None:
        self._context = context
        self._budget = Budget()
        self._customs = custom_names(context.request.tools)
        self._custom_calls: dict[int, Gathered | None] = {}
        """Arguments of functions that stand for custom tools, by the number of the call.

        None if the target has custom tools, or once they were written.
        """
        self._details = NO_DETAILS
        self._detail_count = 0
        self._has_reasoned = False
        self._has_refused = False
        self._in_reasoning = False
        self._usage_null = b',"usage":null}\n\n' if context.request.include_usage else b"}\n\n"
        self._prepare("", 0)

    def write(self, events: list[AnswerEvent]) -> bytes:
        if len(events) == 1:
            return _WRITERS[type(events[0])](self, events[0])
        return b"".join([_WRITERS[type(event)](self, event) for event in events])

    def finish(self) -> bytes:
        return b""  # the last chunk has told it

    def closing(self, tokens: Tokens | None) -> bytes:
        if not self._context.request.include_usage:
            return _DONE
        usage = orjson.dumps(written_usage(tokens or Tokens(), self._details))
        head = self._before_delta.removesuffix(_CHOICE)
        return b'%b[],"usage":%b}\n\n%b' % (head, usage, _DONE)

    def _prepare(self, id: str, created_s: int) -> None:
        """Encode what all chunks have in common."""
        created_s = created_s or self._context.created_s
        common = {
            "id": answer_id(id, created_s),
            "object": "chat.completion.chunk",
            "created": created_s,
            "model": self._context.slug,
        }
        self._before_delta = b'data: %b,"choices":%b' % (orjson.dumps(common)[:-1], _CHOICE)
        self._after_delta = b',"logprobs":null,"finish_reason":null}]' + self._usage_null

    def _delta(self, delta: Json) -> bytes:
        return self._before_delta + orjson.dumps(delta) + self._after_delta

    def _started(self, event: Started) -> bytes:
        self._prepare(event.id, event.created_s)
        return self._delta({"role": "assistant", "content": "", "refusal": None})

    def _text(self, event: TextDelta) -> bytes:
        if event.logprobs is None:
            return b'%b{"content":%b}%b' % (self._before_delta, orjson.dumps(event.text), self._after_delta)
        logprobs = orjson.dumps({"content": event.logprobs, "refusal": None})
        parts = (self._before_delta, orjson.dumps(event.text), logprobs, self._usage_null)
        return b'%b{"content":%b},"logprobs":%b,"finish_reason":null}]%b' % parts

    def _refusal(self, event: RefusalDelta) -> bytes:
        self._has_refused = True
        return self._delta({"refusal": event.text})

    def _reasoning(self, event: ReasoningDelta) -> bytes:
        text = event.text
        if not self._in_reasoning:
            if self._has_reasoned:
                text = BLOCK_SEPARATOR + text
            self._in_reasoning = self._has_reasoned = True
        return b'%b{"reasoning_content":%b}%b' % (self._before_delta, orjson.dumps(text), self._after_delta)

    def _reasoning_ended(self, event: ReasoningEnded) -> bytes:
        text = event.reasoning.text
        chunks = [self._reasoning(ReasoningDelta(text))] if text and not self._in_reasoning else []
        self._in_reasoning = False
        for entry in written_details(event.reasoning, self._context.seals):
            chunks.append(self._delta({"reasoning_details": [entry | {"index": self._detail_count}]}))
            self._detail_count += 1
        return b"".join(chunks)

    def _call_started(self, event: ToolCallStarted) -> bytes:
        call: Json = {"index": event.number, "id": event.id}
        if event.custom or event.name in self._customs:
            self._custom_calls[event.number] = None if event.custom else Gathered(self._budget)
            call |= {"type": "custom", "custom": {"name": event.name, "input": ""}}
        else:
            call |= {"type": "function", "function": {"name": event.name, "arguments": ""}}
        if event.extra:
            call["extra_content"] = event.extra
        return self._delta({"tool_calls": [call]})

    def _call_delta(self, event: ToolCallDelta) -> bytes:
        if event.number in self._custom_calls:
            return self._custom_delta(event.number, event.text)
        parts = (self._before_delta, event.number, orjson.dumps(event.text), self._after_delta)
        return b'%b{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}%b' % parts

    def _custom_delta(self, number: int, text: str) -> bytes:
        gathered = self._custom_calls[number]
        if gathered is None:
            return self._delta({"tool_calls": [{"index": number, "custom": {"input": text}}]})
        gathered.add(text)
        return b""

    def _part_ended(self, _event: PartEnded) -> bytes:
        return b""

    def _details_seen(self, event: DetailsSeen) -> bytes:
        self._details = event.details
        return b""

    def _stopped(self, event: Stopped) -> bytes:
        inputs = b"".join(
            self._delta({"tool_calls": [{"index": number, "custom": {"input": custom_input(gathered.text())}}]})
            for number, gathered in self._custom_calls.items()
            if gathered is not None
        )
        self._custom_calls = dict.fromkeys(self._custom_calls)
        reason = orjson.dumps(finish_reason(event.stop, has_refusal=self._has_refused))
        parts = (inputs, self._before_delta, reason, self._usage_null)
        return b'%b%b{},"logprobs":null,"finish_reason":%b}]%b' % parts

    def _failed(self, event: Failed) -> bytes:
        error = {"message": event.message, "type": event.kind, "param": None, "code": None}
        return b"data: %b\n\n" % orjson.dumps({"error": error})


_WRITERS: dict[type[AnswerEvent], Callable[[ChatStreamWriter, Any], bytes]] = {
    Started: ChatStreamWriter._started,
    TextDelta: ChatStreamWriter._text,
    RefusalDelta: ChatStreamWriter._refusal,
    ReasoningDelta: ChatStreamWriter._reasoning,
    ReasoningEnded: ChatStreamWriter._reasoning_ended,
    ToolCallStarted: ChatStreamWriter._call_started,
    ToolCallDelta: ChatStreamWriter._call_delta,
    PartEnded: ChatStreamWriter._part_ended,
    DetailsSeen: ChatStreamWriter._details_seen,
    Stopped: ChatStreamWriter._stopped,
    Failed: ChatStreamWriter._failed,
}
