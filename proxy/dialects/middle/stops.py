"""Decides why an answer ended, from the vendor's word and from the tools that it called.

Pure. Clients act on a call only where the reason says so, and some vendors say `stop` beside calls.
"""

from collections.abc import Iterable

import orjson

from proxy.dialects.middle.answer import END, MAX_TOKENS, STOP_SEQUENCE, TOOL_CALLS, Stop
from proxy.dialects.middle.request import AnswerPart, ToolCall
from proxy.json_text.exact_numbers import loads_exactly


def stop_of(reason: str, sequence: str | None, parts: Iterable[AnswerPart]) -> Stop:
    """The stop of an answer with these parts. `reason`: the vendor's, in our words.

    It is `TOOL_CALLS` where tools were called; not where the answer was refused, nor where `MAX_TOKENS` cut the last
    call off: its arguments are then no JSON.
    """
    calls = [part for part in parts if isinstance(part, ToolCall)]
    if calls and (reason in (END, STOP_SEQUENCE, TOOL_CALLS) or (reason == MAX_TOKENS and is_complete(calls[-1]))):
        return Stop(TOOL_CALLS)
    if not calls and reason == TOOL_CALLS:
        return Stop(END)
    return Stop(reason, sequence if reason == STOP_SEQUENCE else None)


def is_complete(call: ToolCall) -> bool:
    """Whether the arguments of a call are complete JSON. A custom tool's plain input cannot be checked."""
    if call.custom:
        return True
    try:
        loads_exactly(call.arguments)
    except orjson.JSONDecodeError:
        return False
    return True
