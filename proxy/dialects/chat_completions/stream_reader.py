"""Reads the chunks of a Chat Completions target's stream into events. Lenient, since servers differ.

Pure.
"""

from proxy.dialects.chat_completions.answer_reader import (
    DELTA_PATH,
    READ_MEMBERS,
    content_text,
    note_other_members,
    note_unread_members,
    read_stop,
)
from proxy.dialects.chat_completions.call_deltas import CallDeltas
from proxy.dialects.chat_completions.reasoning import DIALECT_NAME, details_text, native_members, thinking_text
from proxy.dialects.failures import SERVER_FAULT, message_instead
from proxy.dialects.middle.answer import (
    BROKEN,
    AnswerEvent,
    Failed,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    Started,
    Stopped,
    TextDelta,
)
from proxy.dialects.middle.answer_reading import integer_in, object_in, objects_in, text_in
from proxy.dialects.middle.gathering import Budget, Gathered
from proxy.dialects.middle.left_out import LeftOut
from proxy.dialects.middle.reading import Json
from proxy.dialects.middle.request import Reasoning

_PIECES = ("text", "summary", "data")
"""The members of an entry of `reasoning_details` that come in pieces."""
_REASONING = ("reasoning_content", "reasoning")


class ChatStreamReader:
    """Reads the first choice of one answer."""

    __slots__ = (
        *("_block", "_budget", "_calls", "_finish", "_has_begun", "_id", "_instead", "_is_refused"),
        *("_stopped", "left_out"),
    )

    def __init__(self) -> None:
        self._budget = Budget()
        self._calls = CallDeltas(self._budget)
        self._block: _ReasoningBlock | None = None
        """The open block of reasoning."""
        self._finish: Json = {}
        """The latest choice that told a finish. Output may follow it: some servers tell it beside every text."""
        self._id = ""
        self._instead = ""
        """A message that came in place of output: if nothing follows it but the end, the answer has failed."""
        self._is_refused = False
        self._has_begun = False
        self._stopped = False
        self.left_out = LeftOut()

    def read(self, chunk: Json) -> list[AnswerEvent]:
        """Raises `UpstreamCutError` for an answer too large to gather."""
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        events: list[AnswerEvent] = []
        self._instead = "" if choice is not None else message_instead(chunk) or self._instead
        if isinstance(choice, dict) and choice.get("index"):
            self.left_out.add("choices.1")
        elif isinstance(choice, dict):
            if not self._has_begun:
                events.append(self._start(chunk))
            delta = choice.get("delta")
            if isinstance(delta, dict):
                self._read_delta(delta, choice, events)
            self._stopped = self._stopped and not events
            if choice.get("finish_reason"):
                self._read_finish(choice, events)
                note_other_members(chunk, self.left_out)
        if chunk.get("usage") and choice is None:
            events += self.finished()
        return events

    def done_received(self) -> list[AnswerEvent]:
        events: list[AnswerEvent] = []
        if self._instead and not self._finish:
            events.append(Failed(SERVER_FAULT, self._instead))
        elif not self._stopped:
            self._stop(self._finish, events)
        return events

    def finished(self) -> list[AnswerEvent]:
        return self.done_received() if self._finish else []

    def _start(self, chunk: Json) -> Started:
        self._has_begun = True
        self._id = text_in(chunk, "id")
        return Started(self._id, integer_in(chunk, "created") or 0)

    def _read_delta(self, delta: Json, choice: Json, events: list[AnswerEvent]) -> None:
        if not READ_MEMBERS.issuperset(delta) or isinstance(delta.get("content"), list):
            note_unread_members(delta, DELTA_PATH, self.left_out)
            if thinking := thinking_text(delta):
                events.append(ReasoningDelta(thinking))
        if "reasoning_content" in delta or "reasoning" in delta or "reasoning_details" in delta:
            self._read_reasoning(delta, events)
        if delta.get("extra_content"):
            self._open_block().extra.update(object_in(delta, "extra_content"))
        if "content" in delta and (text := content_text(delta)):
            self._end_block(events)
            logprobs = objects_in(object_in(choice, "logprobs"), "content") if choice.get("logprobs") else None
            events.append(TextDelta(text, logprobs or None))
        if "refusal" in delta and (refusal := text_in(delta, "refusal")):
            self._end_block(events)
            self._is_refused = True
            events.append(RefusalDelta(refusal))
        calls = objects_in(delta, "tool_calls") if "tool_calls" in delta else []
        if "function_call" in delta and (legacy := object_in(delta, "function_call")):
            calls = [*calls, {"function": legacy}]
        for call in calls:
            self._end_block(events)
            events += self._calls.read(call, self._id)

    def _read_reasoning(self, delta: Json, events: list[AnswerEvent]) -> None:
        details = objects_in(delta, "reasoning_details")
        text = next((value for name in _REASONING if (value := text_in(delta, name))), "")
        if not text and not details:
            return
        block = self._open_block()
        if text:
            block.is_told = True
        elif not block.is_told:
            text = details_text(details)
        block.add(text, details)
        if text:
            events.append(ReasoningDelta(text))

    def _open_block(self) -> "_ReasoningBlock":
        if self._block is None:
            self._block = _ReasoningBlock(self._budget)
        return self._block

    def _end_block(self, events: list[AnswerEvent]) -> None:
        if self._block is not None:
            events += self._block.end()
            self._block = None

    def _read_finish(self, choice: Json, events: list[AnswerEvent]) -> None:
        """A finish stands once nothing follows it; one that tells a failure stands at once."""
        self._finish = choice
        if read_stop(choice, [], is_refused=False).reason == BROKEN:
            self._stop(choice, events)

    def _stop(self, choice: Json, events: list[AnswerEvent]) -> None:
        self._stopped = True
        self._end_block(events)
        events += self._calls.finish()
        events.append(Stopped(read_stop(choice, self._calls.call_parts(), is_refused=self._is_refused)))


class _ReasoningBlock:
    """A block of reasoning that is being received."""

    __slots__ = ("_budget", "_details", "_text", "extra", "is_told")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._text = Gathered(budget)
        self._details: list[tuple[Json, dict[str, Gathered]]] = []
        """The entries of `reasoning_details`, and their texts, which come in pieces."""
        self.extra: Json = {}
        self.is_told = False
        """The text comes in a member of its own; that of the details repeats it."""

    def add(self, text: str, details: list[Json]) -> None:
        if text:
            self._text.add(text)
        for entry in details:
            self._add_entry(entry)

    def end(self) -> list[AnswerEvent]:
        details = [
            _without_nulls(entry | {name: text.text() for name, text in texts.items()})
            for entry, texts in self._details
        ]
        text = self._text.text()
        native = native_members(text, details, self.extra)
        return [ReasoningEnded(Reasoning(text, DIALECT_NAME, native))] if native else []

    def _add_entry(self, entry: Json) -> None:
        """Add an entry, or the next piece of the last one: of the same type and index. Keeps the order of members."""
        pieces = {name: entry[name] for name in _PIECES if isinstance(entry.get(name), str)}
        last = self._details[-1] if self._details else None
        if last is None or any(last[0].get(name) != entry.get(name) for name in ("type", "index")):
            last = dict.fromkeys(entry), {}
            self._details.append(last)
            self._budget.spend(64 * len(entry))
        last[0].update({name: value for name, value in entry.items() if value is not None and name not in pieces})
        for name, piece in pieces.items():
            last[1].setdefault(name, Gathered(self._budget)).add(piece)


def _without_nulls(entry: Json) -> Json:
    return {name: value for name, value in entry.items() if value is not None}
