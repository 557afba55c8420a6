"""Writes a whole answer for a Messages caller.

Pure.
"""

from policy.billing import Tokens
from proxy.dialects.messages.answer_blocks import (
    call_id,
    extra_block,
    message_id,
    reasoning_block,
    stop_members,
    tells_reasoning,
    usage_of,
)
from proxy.dialects.messages.turn_writer import input_of
from proxy.dialects.middle.answer import Answer, Json
from proxy.dialects.middle.dialect import AnswerContext
from proxy.dialects.middle.request import AnswerPart, Reasoning, Refusal, ToolCall
from proxy.dialects.middle.sealing import Seals


def write_answer(answer: Answer, context: AnswerContext, tokens: Tokens | None) -> Json:
    """Write the message. `tokens`: the reported usage; without a report, all figures are 0."""
    name = message_id(answer.id, answer.created_s or context.created_s)
    content: list[Json] = []
    calls = 0
    shows_reasoning = tells_reasoning(context.request)
    if answer.logprobs:
        context.left_out.add("logprobs")
    refusal = "".join(part.text for part in answer.parts if isinstance(part, Refusal))
    for part in answer.parts:
        if isinstance(part, ToolCall):
            content += _call(part, call_id(part.id, name, calls), context.seals)
            calls += 1
        elif not isinstance(part, Reasoning) or shows_reasoning:
            content += _blocks(part, context.seals)
    return {
        "id": name,
        "type": "message",
        "role": "assistant",
        "model": context.slug,
        "content": content,
        **stop_members(answer.stop, refusal, context.request.sampling.stop),
        "usage": usage_of(tokens, answer.details, context),
    }


def _call(call: ToolCall, written_id: str, seals: Seals) -> list[Json]:
    block: Json = {"type": "tool_use", "id": written_id, "name": call.name, "input": input_of(call.arguments)}
    return [extra_block(written_id, call.extra, seals), block] if call.extra else [block]


def _blocks(part: AnswerPart, seals: Seals) -> list[Json]:
    if isinstance(part, Reasoning):
        block = reasoning_block(part, seals)
        return [] if block is None else [block]
    assert not isinstance(part, ToolCall)
    return [{"type": "text", "text": part.text}] if part.text else []
