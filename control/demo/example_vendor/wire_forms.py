"""The answers of the example vendor in three dialects, whole and as the events of a stream. Pure."""

from collections.abc import Iterator
from typing import Any

from control.demo.example_vendor.answer import Answer

Frame = dict[str, Any]
Frames = Iterator[Frame]
"""The events of a stream, as JSON; those with a `type` carry it as the name of the event, too."""


def chat_completion(answer: Answer, id: str) -> Frame:
    message = {"role": "assistant", "content": answer.text}
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(answer)}
    return _chat_frame(answer, id, "chat.completion", [choice]) | {"usage": _chat_usage(answer)}


def chat_chunks(answer: Answer, id: str, body: Frame) -> Frames:
    """The chunks. `body` asks for usage with `stream_options`."""
    wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    extra = {"usage": None} if wants_usage else {}

    def chunk(delta: Frame, finish_reason: str | None = None) -> Frame:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return _chat_frame(answer, id, "chat.completion.chunk", [choice]) | extra

    yield chunk({"role": "assistant", "content": ""})
    for word in answer.words:
        yield chunk({"content": word})
    yield chunk({}, _finish_reason(answer))
    if wants_usage:
        yield _chat_frame(answer, id, "chat.completion.chunk", []) | {"usage": _chat_usage(answer)}


def message(answer: Answer, id: str) -> Frame:
    """An answer of the Messages dialect."""
    return _message_head(answer, id) | {
        "content": [{"type": "text", "text": answer.text}],
        "stop_reason": _stop_reason(answer),
        "usage": {"input_tokens": answer.input_tokens, "output_tokens": answer.output_tokens},
    }


def message_events(answer: Answer, id: str) -> Frames:
    yield {"type": "message_start", "message": _message_head(answer, id)}
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    for word in answer.words:
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
    yield {"type": "content_block_stop", "index": 0}
    delta = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": answer.output_tokens}}
    yield {"type": "message_stop"}


def response(answer: Answer, id: str) -> Frame:
    """An answer of the Responses dialect."""
    usage = {
        "input_tokens": answer.input_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": answer.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.input_tokens + answer.output_tokens,
    }
    status = "incomplete" if answer.is_cut else "completed"
    return _response_head(answer, id) | {
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if answer.is_cut else None,
        "output": [_item(id, [_text_part(answer.text)], status)],
        "usage": usage,
    }


def response_events(answer: Answer, id: str) -> Frames:
    whole = response(answer, id)
    item = whole["output"][0]
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    events: list[Frame] = [
        {"type": "response.created", "response": _response_head(answer, id)},
        {"type": "response.output_item.added", "output_index": 0, "item": _item(id, [], "in_progress")},
        {"type": "response.content_part.added", **place, "part": _text_part("")},
        *({"type": "response.output_text.delta", **place, "delta": word, "logprobs": []} for word in answer.words),
        {"type": "response.output_text.done", **place, "text": answer.text, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": _text_part(answer.text)},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": f"response.{whole['status']}", "response": whole},
    ]
    for number, event in enumerate(events):
        yield event | {"sequence_number": number}


def _chat_frame(answer: Answer, id: str, kind: str, choices: list[Frame]) -> Frame:
    return {"id": f"chatcmpl-{id}", "object": kind, "created": 1, "model": answer.model, "choices": choices}


def _chat_usage(answer: Answer) -> Frame:
    return {
        "prompt_tokens": answer.input_tokens,
        "completion_tokens": answer.output_tokens,
        "total_tokens": answer.input_tokens + answer.output_tokens,
    }


def _finish_reason(answer: Answer) -> str:
    return "length" if answer.is_cut else "stop"


def _stop_reason(answer: Answer) -> str:
    return "max_tokens" if answer.is_cut else "end_turn"


def _message_head(answer: Answer, id: str) -> Frame:
    """A message whose content has not come yet."""
    return {
        "id": f"msg_{id}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": answer.input_tokens, "output_tokens": 1},
    }


def _response_head(answer: Answer, id: str) -> Frame:
    """A response whose output has not come yet."""
    return {
        "id": f"resp_{id}",
        "object": "response",
        "created_at": 1,
        "model": answer.model,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "output": [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None,
    }


def _item(id: str, content: list[Frame], status: str) -> Frame:
    return {"type": "message", "id": f"msg_{id}", "role": "assistant", "status": status, "content": content}


def _text_part(text: str) -> Frame:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
