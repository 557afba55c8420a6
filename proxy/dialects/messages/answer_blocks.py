"""Parts that whole answers and streams to Messages callers share: ids, blocks of reasoning, stop and usage.

Pure.
"""

from policy.billing import Details, Tokens
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES
from proxy.dialects.messages.tool_ids import accepted_id
from proxy.dialects.middle.answer import (
    CONTEXT_FULL,
    END,
    MAX_TOKENS,
    PAUSED,
    REFUSED,
    STOP_SEQUENCE,
    TOOL_CALLS,
    Json,
    Stop,
)
from proxy.dialects.middle.dialect import AnswerContext
from proxy.dialects.middle.request import Reasoning, Request
from proxy.dialects.middle.sealing import Seals

_STOP_REASONS = {
    END: "end_turn",
    MAX_TOKENS: "max_tokens",
    STOP_SEQUENCE: "stop_sequence",
    TOOL_CALLS: "tool_use",
    REFUSED: "refusal",
    PAUSED: "pause_turn",
    CONTEXT_FULL: "model_context_window_exceeded",
}
_PREFIX = "msg_"
_DISTINCT_CHARS = 16
"""An id at least this long is taken to be used once; clients merge answers that share an id."""


def message_id(vendor_id: str, created_s: int) -> str:
    """Return the vendor's id, or one made from it and the answer's time."""
    if vendor_id.startswith(_PREFIX):
        return vendor_id
    body = accepted_id(vendor_id.removeprefix("chatcmpl-").removeprefix("resp_"))
    return _PREFIX + (body if len(body) >= _DISTINCT_CHARS else f"{body}{'_' if body else ''}{created_s:x}")


def call_id(vendor_id: str, message: str, number: int) -> str:
    """Return a call's id in the characters that Messages allows; one made from the message's id where it has none."""
    return accepted_id(vendor_id) or f"toolu_{message.removeprefix(_PREFIX)}_{number}"


def extra_block(written_id: str, extra: Json, seals: Seals) -> Json:
    """Keeps an opaque member of a tool call for the next turn; stands before the call."""
    sealed = seals.seal(CHAT_COMPLETIONS, {"tool_call_extra": {written_id: extra}})
    return {"type": "redacted_thinking", "data": sealed}


def reasoning_block(reasoning: Reasoning, seals: Seals) -> Json | None:
    """The block; None if there is nothing to show or to return."""
    native = reasoning.native
    if native is not None and reasoning.dialect == MESSAGES:
        return native
    if native is None:
        return {"type": "thinking", "thinking": reasoning.text, "signature": ""} if reasoning.text else None
    sealed = seals.seal(reasoning.dialect, native)
    if reasoning.text:
        return {"type": "thinking", "thinking": reasoning.text, "signature": sealed}
    return {"type": "redacted_thinking", "data": sealed}


def tells_reasoning(request: Request) -> bool:
    """Return whether the caller expects blocks of reasoning: it enabled thinking, or returns them between tool calls.

    Others would take the first block for the answer's text, and some targets think by default.
    """
    return bool(request.tools) or (request.reasoning is not None and bool(request.reasoning.enabled))


def stop_members(stop: Stop, refusal: str, sequences: list[str]) -> Json:
    """`refusal`: its text, if the model refused in words. `sequences`: those that the caller asked for."""
    reason = stop.reason
    sequence = None
    if reason == STOP_SEQUENCE and stop.sequence not in sequences:
        reason = END
    elif reason == STOP_SEQUENCE:
        sequence = stop.sequence
    members: Json = {"stop_reason": _STOP_REASONS[reason], "stop_sequence": sequence}
    if reason == REFUSED and refusal:
        members["stop_details"] = {"type": "refusal", "category": None, "explanation": refusal}
    return members


def usage_of(tokens: Tokens | None, details: Details, context: AnswerContext) -> Json:
    """Return the usage of a complete answer.

    A caller that asked for a thread is told that another model wrote the answer. By the vendor's rule no thread has it
    then, so the caller sends the whole conversation again, as SDKs do.
    """
    usage = usage_member(tokens, details)
    if "thread" not in context.request.echo:
        return usage
    figures = {name: count for name, count in usage.items() if name != "output_tokens_details"}
    return usage | {"iterations": [figures | {"type": "fallback_message", "model": context.slug}]}


def usage_member(tokens: Tokens | None, details: Details) -> Json:
    """Return the usage. `input_tokens` excludes what caches gave and took."""
    figures = tokens or Tokens()
    cache_write = min(details.cache_write, figures.input - figures.cached_input)
    usage: Json = {
        "input_tokens": figures.input - figures.cached_input - cache_write,
        "cache_creation_input_tokens": cache_write,
        "cache_read_input_tokens": figures.cached_input,
        "output_tokens": figures.output,
    }
    if long := min(details.cache_write_1h, cache_write):
        usage["cache_creation"] = {
            "ephemeral_5m_input_tokens": cache_write - long,
            "ephemeral_1h_input_tokens": long,
        }
    if details.reasoning:
        usage["output_tokens_details"] = {"thinking_tokens": details.reasoning}
    return usage
