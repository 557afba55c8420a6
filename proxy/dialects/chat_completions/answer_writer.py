"""Writes a whole answer for a caller of Chat Completions.

Pure.
"""

from policy.billing import Tokens
from proxy.dialects.chat_completions.answer_form import (
    answer_id,
    custom_input,
    custom_names,
    finish_reason,
    written_usage,
)
from proxy.dialects.chat_completions.reasoning import written_members
from proxy.dialects.middle.answer import Answer
from proxy.dialects.middle.dialect import AnswerContext
from proxy.dialects.middle.reading import Json
from proxy.dialects.middle.request import Reasoning, Refusal, Text, ToolCall
from proxy.dialects.middle.sealing import Seals


def write_answer(answer: Answer, context: AnswerContext, tokens: Tokens | None) -> Json:
    """The caller's body. `tokens`: the reported usage, if any."""
    created_s = answer.created_s or context.created_s
    message = _message(answer, custom_names(context.request.tools), context.seals)
    logprobs = {"content": answer.logprobs, "refusal": None} if answer.logprobs is not None else None
    reason = finish_reason(answer.stop, has_refusal=message["refusal"] is not None)
    body: Json = {
        "id": answer_id(answer.id, created_s),
        "object": "chat.completion",
        "created": created_s,
        "model": context.slug,
        "choices": [{"index": 0, "message": message, "logprobs": logprobs, "finish_reason": reason}],
    }
    return body if tokens is None else body | {"usage": written_usage(tokens, answer.details)}


def _message(answer: Answer, customs: frozenset[str], seals: Seals) -> Json:
    texts = [part.text for part in answer.parts if isinstance(part, Text)]
    refusals = [part.text for part in answer.parts if isinstance(part, Refusal)]
    message: Json = {
        "role": "assistant",
        "content": "".join(texts) if texts else None,
        "refusal": "".join(refusals) if refusals else None,
    }
    message |= written_members([part for part in answer.parts if isinstance(part, Reasoning)], seals)
    calls = [_call(part, customs) for part in answer.parts if isinstance(part, ToolCall)]
    return message | {"tool_calls": calls} if calls else message


def _call(call: ToolCall, customs: frozenset[str]) -> Json:
    if call.custom or call.name in customs:
        text = call.arguments if call.custom else custom_input(call.arguments)
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": text}}
    function = {"name": call.name, "arguments": call.arguments}
    entry: Json = {"id": call.id, "type": "function", "function": function}
    return entry | {"extra_content": call.extra} if call.extra else entry
