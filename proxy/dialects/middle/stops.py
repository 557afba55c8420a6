"""Decides why an answer ended, from the vendor's word and from the tools that it called.

Pure. Clients act on a call only where the reason says so, and some vendors say `stop` beside calls. All dialects share
one table of words: servers that speak a vendor's dialect often keep words of their own.
"""

from collections.abc import Sequence

import orjson

from proxy.dialects.failures import SERVER_FAULT
from proxy.dialects.middle.answer import (
    BROKEN,
    CONTEXT_FULL,
    END,
    MAX_TOKENS,
    PAUSED,
    REFUSED,
    STOP_SEQUENCE,
    TOOL_CALLS,
    Failed,
    Stop,
)
from proxy.dialects.middle.request import AnswerPart, ToolCall, TurnPart
from proxy.json_text.exact_numbers import loads_exactly

EMPTY_OBJECT = "{}"
"""The arguments of a call without any."""
MAX_WORD_CHARS = 64
"""Most characters of a vendor's word that are kept. The longest known one has half as many."""
_WORDS = {
    END: ("stop", "end_turn", "eos", "eos_token", "complete", "completed", "load", "unload"),
    MAX_TOKENS: ("length", "max_tokens", "max_output_tokens", "model_length", "max_length"),
    STOP_SEQUENCE: ("stop_sequence",),
    TOOL_CALLS: ("tool_calls", "tool_call", "tool_use", "function_call"),
    REFUSED: (
        *("content_filter", "content_filtered", "refusal", "guardrail_intervened", "sensitive", "safety", "recitation"),
        *("prohibited_content", "blocklist", "spii", "language", "error_toxic"),
        *("image_safety", "image_recitation", "image_prohibited_content"),
    ),
    PAUSED: ("pause_turn",),
    CONTEXT_FULL: ("model_context_window_exceeded", "error_limit"),
    BROKEN: (
        *("abort", "aborted", "error", "failed", "cancelled", "canceled", "user_cancel", "timeout", "network_error"),
        *("insufficient_system_resource", "malformed_function_call", "unexpected_tool_call", "function_call_filter"),
        *("malformed_response", "too_many_tool_calls"),
    ),
}
"""The words of vendors and model servers, in lower case. `load` and `unload` are Ollama's, for an empty prompt."""
_REASONS = {word: reason for reason, words in _WORDS.items() for word in words}
_KINDS = {"insufficient_system_resource": "overloaded_error"}
"""The type of a failure, where it is not `SERVER_FAULT`."""


def stop_with(word: str, parts: Sequence[AnswerPart], sequence: str | None = None, otherwise: str = END) -> Stop:
    """The stop of an answer with these parts, which its vendor ended with `word`; empty if it said none.

    `sequence`: the stop sequence that matched, if the vendor names it. `otherwise`: what an unknown word means.
    """
    reason = _reason(word)
    if reason == BROKEN:
        return Stop(BROKEN, word=word[:MAX_WORD_CHARS])
    stop = stop_of(reason or otherwise, sequence, parts)
    if reason is None and word:
        stop.word = word[:MAX_WORD_CHARS]
    return stop


def stop_of(reason: str, sequence: str | None, parts: Sequence[AnswerPart]) -> Stop:
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


def failure_of(stop: Stop) -> Failed | None:
    """The failure of an answer that its server gave up; None for any other stop."""
    if stop.reason != BROKEN:
        return None
    kind = _KINDS.get(stop.word.lower(), SERVER_FAULT)
    return Failed(kind, f"The model server broke the answer off: {stop.word}")


def fill_empty_arguments(parts: Sequence[TurnPart]) -> None:
    """Give calls without arguments an empty object: not every client or server parses an empty text.

    Of an answer, call it once the stop is known.
    """
    for part in parts:
        if isinstance(part, ToolCall) and not part.custom and not part.arguments.strip():
            part.arguments = EMPTY_OBJECT


def is_complete(call: ToolCall) -> bool:
    """Return whether the arguments of a call are complete JSON. A custom tool's plain input cannot be checked."""
    if call.custom:
        return True
    try:
        loads_exactly(call.arguments)
    except orjson.JSONDecodeError:
        return False
    return True


def _reason(word: str) -> str | None:
    """Return our word for a vendor's; None for an unknown one.

    Some vendors write it in capitals, or its cause after a colon: `content_filter: RECITATION`.
    """
    reason = _REASONS.get(word)
    if reason is None:
        plain = word[:MAX_WORD_CHARS].lower()
        reason = _REASONS.get(plain) or _REASONS.get(plain.partition(":")[0].strip())
    return reason
