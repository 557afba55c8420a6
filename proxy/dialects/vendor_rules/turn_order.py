"""Puts the results of tool calls directly behind their calls, which every vendor's server requires but Responses'.

Pure. Nothing is lost or doubled: a result without a call becomes text, a call without a result gets one that says so.
"""

from collections import deque
from collections.abc import Iterator

from proxy.dialects.middle.request import ASSISTANT, USER, ConversationTurn, Text, ToolCall, ToolResult, TurnPart

NO_RESULT = "(no result)"
"""The result of a call that has none: no server accepts a call without one."""


def results_behind_calls(turns: list[ConversationTurn]) -> list[ConversationTurn]:
    """The turns in an order that every server accepts. Adjacent turns of an assistant that calls tools become one."""
    if not any(isinstance(part, ToolCall | ToolResult) for turn in turns for part in turn.parts):
        return turns
    order = _TurnOrder(_results_of_calls(turns))
    for turn in turns:
        order.add(turn)
    return order.finish(ends_in_result=bool(turns[-1].parts) and isinstance(turns[-1].parts[-1], ToolResult))


class _TurnOrder:
    """The turns so far. Calls wait for what else the assistant says before their results follow."""

    def __init__(self, results: dict[int, ToolResult]) -> None:
        """`results`: by the identity of their call."""
        self._results = results
        self._placed = {id(result) for result in results.values()}
        self._turns: list[ConversationTurn] = []
        self._calls: list[ToolCall] = []
        """Calls of the last turn, whose results are still to follow."""
        self._last_calls = 0
        """The place of the latest turn whose calls have their results."""

    def add(self, turn: ConversationTurn) -> None:
        if turn.role == ASSISTANT:
            self._add_assistant(turn)
            return
        parts = [piece for part in turn.parts for piece in self._kept(part)]
        results = self._waiting_results()
        if results and turn.role == USER:
            parts = [*results, *parts]
        elif results:
            self._turns.append(ConversationTurn(USER, [*results], field=turn.field))
        if parts or not turn.parts:
            self._turns.append(ConversationTurn(turn.role, parts, turn.name, turn.field))

    def finish(self, *, ends_in_result: bool) -> list[ConversationTurn]:
        """`ends_in_result`: the model is to answer a result, so no assistant's turn may come after it."""
        results = self._waiting_results()
        if results:
            self._turns.append(ConversationTurn(USER, [*results], field=self._turns[-1].field))
        turns = self._turns
        at = self._last_calls
        if ends_in_result and turns and turns[-1].role == ASSISTANT and turns[at].role == ASSISTANT:
            return [*turns[:at], *turns[at + 2 :], *turns[at : at + 2]]
        return turns

    def _add_assistant(self, turn: ConversationTurn) -> None:
        if self._calls:
            self._turns[-1].parts += turn.parts
        else:
            self._turns.append(ConversationTurn(ASSISTANT, [*turn.parts], turn.name, turn.field))
        self._calls += [part for part in turn.parts if isinstance(part, ToolCall)]

    def _waiting_results(self) -> list[TurnPart]:
        calls = self._calls
        self._calls = []
        if calls:
            self._last_calls = len(self._turns) - 1
        return [self._results.get(id(call)) or _missing(call) for call in calls]

    def _kept(self, part: TurnPart) -> list[TurnPart]:
        """Return what stays of a part in its place."""
        if not isinstance(part, ToolResult):
            return [part]
        return [] if id(part) in self._placed else _as_text(part)


def _missing(call: ToolCall) -> ToolResult:
    return ToolResult(call.id, [Text(NO_RESULT)], custom=call.custom, field=call.field)


def _as_text(result: ToolResult) -> list[TurnPart]:
    failed = "Error as result" if result.is_error else "Result"
    return [Text(f"{failed} of tool call {result.call_id}:", field=result.field), *result.parts]


class _OpenCalls:
    """Calls without a result. Some servers use the same ids in each turn: the latest turn's are answered first."""

    def __init__(self) -> None:
        self._by_id: dict[str, dict[int, deque[ToolCall]]] = {}

    def add(self, call: ToolCall, turn: int) -> None:
        self._by_id.setdefault(call.id, {}).setdefault(turn, deque()).append(call)

    def pop(self, id: str) -> ToolCall | None:
        """The call that a result with this id belongs to."""
        turns = self._by_id.get(id)
        if not turns:
            return None
        turn = next(reversed(turns))
        call = turns[turn].popleft()
        if not turns[turn]:
            del turns[turn]
        return call


def _results_of_calls(turns: list[ConversationTurn]) -> dict[int, ToolResult]:
    """The result of each call that has one, by the call's identity: mostly after it; else one before it."""
    open_calls = _OpenCalls()
    early = list[ToolResult]()
    results: dict[int, ToolResult] = {}
    for number, part in _calls_and_results(turns):
        if isinstance(part, ToolCall):
            open_calls.add(part, number)
        elif (call := open_calls.pop(part.call_id)) is not None:
            results[id(call)] = part
        else:
            early.append(part)
    for result in early:
        if (call := open_calls.pop(result.call_id)) is not None:
            results[id(call)] = result
    return results


def _calls_and_results(turns: list[ConversationTurn]) -> Iterator[tuple[int, ToolCall | ToolResult]]:
    """Calls and results, each with the number of its turn."""
    for number, turn in enumerate(turns):
        for part in turn.parts:
            if isinstance(part, ToolCall | ToolResult):
                yield number, part
