"""Writes a caller's whole Responses answer, and the response object that the events of a stream hold.

Pure. `store` is false in every answer, whatever was requested.
"""

from itertools import groupby

from policy.billing import Details, Tokens
from proxy.dialects.middle.answer import CONTEXT_FULL, MAX_TOKENS, REFUSED, Answer
from proxy.dialects.middle.dialect import AnswerContext
from proxy.dialects.middle.reading import Json
from proxy.dialects.middle.request import AnswerPart, Reasoning, Refusal, Text, ToolCall
from proxy.dialects.middle.sealing import Seals
from proxy.dialects.responses.output_items import (
    COMPLETED,
    IN_PROGRESS,
    INCOMPLETE,
    CallItems,
    ItemIds,
    as_shown,
    extra_item,
    id_of_call,
    item_ids,
    message_item,
    reasoning_item,
    refusal_part,
    response_id,
    sealed_block,
    text_part,
    with_bytes,
)

_SETTINGS: Json = {
    "background": False,
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "service_tier": "default",
    "store": False,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "usage": None,
}
"""Settings in an answer whose request left them out."""
_INCOMPLETE_REASONS = {MAX_TOKENS: "max_output_tokens", CONTEXT_FULL: "max_output_tokens", REFUSED: "content_filter"}


def write_answer(answer: Answer, context: AnswerContext, tokens: Tokens | None) -> Json:
    reason = incomplete_reason(answer.stop.reason, refused=any(isinstance(part, Refusal) for part in answer.parts))
    output = _output(answer, context, INCOMPLETE if reason else COMPLETED)
    response = begun_response(answer.id, answer.created_s, context)
    return response | ended_members(reason, output, usage(tokens, answer.details))


def incomplete_reason(stop: str, *, refused: bool) -> str:
    """Return why an answer is incomplete; empty if it is complete. `refused`: it holds the model's own refusal."""
    return "" if stop == REFUSED and refused else _INCOMPLETE_REASONS.get(stop, "")


def begun_response(id: str, created_s: int, context: AnswerContext) -> Json:
    """The response as the first events have it. `id`: the vendor's."""
    echo = context.request.echo
    created_s = created_s or context.created_s
    return {
        "id": response_id(id, created_s),
        "object": "response",
        "created_at": created_s,
        "status": IN_PROGRESS,
        **_SETTINGS,
        **echo,
        "model": context.slug,
        "output": [],
        "reasoning": {"effort": None, "summary": None} | echo.get("reasoning", {}),
        "text": {"format": {"type": "text"}} | echo.get("text", {}),
        "tools": [_tool(tool) for tool in echo.get("tools", [])],
    }


def ended_members(reason: str, output: list[Json], usage: Json | None) -> Json:
    """Return the members that the end of an answer changes. `reason`: why it is incomplete, if it is."""
    status = INCOMPLETE if reason else COMPLETED
    return {
        "status": status,
        "incomplete_details": {"reason": reason} if reason else None,
        "output": output,
        "usage": usage,
    }


def usage(tokens: Tokens | None, details: Details) -> Json | None:
    """The usage; None if none was reported."""
    if tokens is None:
        return None
    return {
        "input_tokens": tokens.input,
        "input_tokens_details": {
            "cached_tokens": tokens.cached_input,
            "cache_write_tokens": details.cache_write,
        },
        "output_tokens": tokens.output,
        "output_tokens_details": {"reasoning_tokens": details.reasoning},
        "total_tokens": tokens.total,
    }


def _tool(tool: Json) -> Json:
    """A tool as answers repeat it."""
    return {"parameters": None, "strict": None} | tool if tool.get("type") == "function" else tool


def _output(answer: Answer, context: AnswerContext, status: str) -> list[Json]:
    """Return the items. The texts between two other parts are one message; only the last item can be incomplete."""
    calls = CallItems(context.request.tools)
    ids = item_ids(answer.id, answer.created_s or context.created_s)
    logprobs = with_bytes(answer.logprobs)
    output: list[Json] = []
    parts = [as_shown(part, context.request) if isinstance(part, Reasoning) else part for part in answer.parts]
    groups = [(text, list(group)) for text, group in groupby(parts, lambda part: isinstance(part, Text | Refusal))]
    for number, (text, group) in enumerate(groups):
        last = status if number == len(groups) - 1 else COMPLETED
        if text:
            content, logprobs = _content(group, logprobs)
            output.append(message_item(ids.of("msg", len(output)), content, last))
        else:
            _add_items(group, last, (calls, ids, context.seals), output)
    return output


def _content(parts: list[AnswerPart], logprobs: list[Json]) -> tuple[list[Json], list[Json]]:
    """The content of a message, and the log probabilities that are left: all go to the first text."""
    content: list[Json] = []
    for part in parts:
        if isinstance(part, Refusal):
            content.append(refusal_part(part.text))
        elif isinstance(part, Text):
            content.append(text_part(part.text, logprobs))
            logprobs = []
    return content, logprobs


def _add_items(
    parts: list[AnswerPart], last: str, writers: tuple[CallItems, ItemIds, Seals], output: list[Json]
) -> None:
    calls, ids, seals = writers
    for part in parts:
        if isinstance(part, Reasoning):
            output.append(reasoning_item(ids.of("rs", len(output)), part.text, sealed_block(part, seals)))
        elif isinstance(part, ToolCall):
            call = ToolCall(id_of_call(part.id, ids, len(output)), part.name, part.arguments, part.custom)
            if part.extra is not None:
                output.append(extra_item(ids.of("rs", len(output)), call.id, part.extra, seals))
            status = last if part is parts[-1] else COMPLETED
            output.append(calls.item(ids.of(calls.prefix(call), len(output)), call, status))
