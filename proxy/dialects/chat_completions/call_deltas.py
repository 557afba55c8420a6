"""Finds the call that a delta of a Chat Completions stream belongs to. Servers differ in how they tell.

Pure. Some give no index, some give all calls the index 0, some no id, some repeat id and name in every delta.
"""

from dataclasses import dataclass, field

from proxy.dialects.chat_completions.answer_reader import made_call_id, read_call
from proxy.dialects.middle.answer import AnswerEvent, ToolCallDelta, ToolCallStarted
from proxy.dialects.middle.answer_reading import integer_in, object_in, text_in
from proxy.dialects.middle.gathering import Budget, Gathered, ObjectProgress
from proxy.dialects.middle.reading import Json
from proxy.dialects.middle.request import AnswerPart, ToolCall
from proxy.dialects.middle.stops import EMPTY_OBJECT


@dataclass(slots=True)
class _Call:
    number: int
    index: int | None
    vendor_id: str
    id: str
    arguments: Gathered
    name: str = ""
    custom: bool = False
    is_announced: bool = False
    """True once its name is known, and the caller was told of it."""
    progress: ObjectProgress = field(default_factory=ObjectProgress)
    unread: list[str] = field(default_factory=list)
    """Arguments that `progress` has not seen: few streams need to know."""

    def add(self, text: str) -> None:
        self.arguments.add(text)
        self.unread.append(text)

    @property
    def is_complete(self) -> bool:
        """Return whether the arguments are a whole object: what follows belongs to another call."""
        for text in self.unread:
            self.progress.add(text)
        self.unread.clear()
        return self.progress.is_complete


class CallDeltas:
    """The tool calls of one streamed answer."""

    __slots__ = ("_budget", "_by_id", "_by_index", "_calls", "_ids")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._calls: list[_Call] = []
        self._by_id: dict[str, _Call] = {}
        self._by_index: dict[int, _Call] = {}
        """The latest call of each index."""
        self._ids: set[str] = set()
        """The ids of the calls, as the caller knows them."""

    def read(self, delta: Json, answer_id: str) -> list[AnswerEvent]:
        """Return the events of one entry of `tool_calls`."""
        function = delta.get("function")
        if isinstance(function, dict) and not delta.get("id") and not function.get("name"):  # nearly all entries
            index = delta.get("index")
            text = function.get("arguments")
            call = self._by_index.get(index) if type(index) is int else None
            if call is not None and call is self._calls[-1] and call.is_announced and isinstance(text, str):
                call.add(text)
                return [ToolCallDelta(call.number, text)] if text else []
        return self._read_any(delta, answer_id)

    def _read_any(self, delta: Json, answer_id: str) -> list[AnswerEvent]:
        name, text, custom = read_call(delta)
        call = self._call_of(text_in(delta, "id"), integer_in(delta, "index"), name)
        if call is None:
            call = self._begin(delta, answer_id)
        if text:
            call.add(text)
        if call.is_announced:
            return [ToolCallDelta(call.number, text)] if text else []
        call.name = name
        call.custom = custom
        return self._start(call, object_in(delta, "extra_content") or None) if name else []

    def finish(self) -> list[AnswerEvent]:
        """Start the calls whose name never came, so that no call is lost, and give empty arguments to those without."""
        events: list[AnswerEvent] = []
        for call in self._calls:
            if not call.is_announced:
                events += self._start(call, None)
            if not call.custom and not call.arguments.text().strip():
                call.add(EMPTY_OBJECT)
                events.append(ToolCallDelta(call.number, EMPTY_OBJECT))
        return events

    def call_parts(self) -> list[AnswerPart]:
        """The calls so far; only of the last one the arguments, which tell whether it is complete."""
        calls: list[AnswerPart] = [ToolCall(call.id, call.name, "", call.custom) for call in self._calls[:-1]]
        if self._calls:
            last = self._calls[-1]
            calls.append(ToolCall(last.id, last.name, last.arguments.text(), last.custom))
        return calls

    def _call_of(self, id: str, index: int | None, name: str) -> _Call | None:
        """Return the known call that a delta goes on with; None if it begins another one."""
        at_index = self._by_index.get(index) if index is not None else None
        last = self._calls[-1] if self._calls else None
        if not id and not name:  # the index may count up with each delta, or stay that of an earlier call
            return last if at_index is None or at_index.is_complete else at_index
        if id:
            call = self._by_id.get(id)
            if call is None:  # a new id without a name: some servers make one up for every delta
                return None if name or at_index is None or at_index.is_complete else at_index
            if index is not None and index != call.index and name and call.index is not None:
                return at_index
            return call
        call = at_index if index is not None else last
        return None if call is not None and call.is_complete else call

    def _begin(self, delta: Json, answer_id: str) -> _Call:
        number = len(self._calls)
        id = text_in(delta, "id")
        index = integer_in(delta, "index")
        self._budget.spend(len(id) + 1)
        own_id = made_call_id(answer_id, number) if not id or id in self._ids else id
        self._ids.add(own_id)
        call = _Call(number, index, id, own_id, Gathered(self._budget))
        self._calls.append(call)
        if id:
            self._by_id[id] = call
        if index is not None:
            self._by_index[index] = call
        return call

    def _start(self, call: _Call, extra: Json | None) -> list[AnswerEvent]:
        call.is_announced = True
        events: list[AnswerEvent] = [ToolCallStarted(call.number, call.id, call.name, call.custom, extra)]
        text = call.arguments.text()
        return [*events, ToolCallDelta(call.number, text)] if text else events
