"""Answers of the Responses dialect, each whole and streamed: those of the scripted vendor, and of stranger servers."""

from typing import Any

import orjson

from tests.upstream.dialects import responses
from tests.upstream.dialects.scenarios import SCENARIOS, Answer, Prompt, Text, Tool, respond

Json = dict[str, Any]

ASKED: Json = {
    "model": "m",
    "input": "hi",
    "reasoning": {"effort": "high", "summary": "auto"},
    "include": [responses.ENCRYPTED],
}
USAGE: Json = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 3},
    "output_tokens": 4,
    "output_tokens_details": {"reasoning_tokens": 1},
    "total_tokens": 13,
}


def _scripted(scenario: str) -> tuple[Json, list[bytes]]:
    tool = Tool("get_weather", None, {"type": "object", "properties": {"city": {"type": "string"}}}, False)
    prompt = Prompt("m", True, (("user", Text(f"[[scenario:{scenario}]]")),), tools=(tool,), thinks=True)
    answer = respond(prompt)
    assert isinstance(answer, Answer)
    return responses.whole(ASKED, prompt, answer), list(responses.frames(ASKED, prompt, answer))


def frame(event: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))


def response(output: list[Json], status: str = "completed", **more: Any) -> Json:
    """A whole answer with only the members that every server has."""
    head = {"id": "resp_1", "object": "response", "created_at": 1_700_000_000, "status": status, "model": "m"}
    return head | {"output": output, "usage": USAGE} | more


def streamed(whole: Json, *between: Json) -> list[bytes]:
    """The frames of an answer whose events between start and end are `between`."""
    head = whole | {"status": "in_progress", "output": [], "usage": None}
    ending = {"type": f"response.{whole['status']}", "response": whole}
    events = [{"type": "response.created", "response": head}, *between, ending]
    return [frame(event | {"sequence_number": number}) for number, event in enumerate(events)]


def _message(*texts: str) -> Json:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []} for text in texts]
    return {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": content}


def _delta(text: str, part: int = 0, item: int = 0, **more: Any) -> Json:
    at = {"item_id": f"msg_{item}", "output_index": item, "content_index": part}
    return {"type": "response.output_text.delta", "delta": text, "logprobs": [], **at, **more}


def _only_done_events() -> tuple[Json, list[bytes]]:
    """A server that sends no deltas and no starts."""
    items: list[Json] = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"},
        {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "hm"}]},
        _message("Let me look.", "Wait."),
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c2", "name": "g", "input": "plain"},
    ]
    whole = response(items)
    done_events = [
        {"type": "response.output_item.done", "output_index": n, "item": item} for n, item in enumerate(items)
    ]
    return whole, streamed(whole, *done_events)


def _raw_reasoning() -> tuple[Json, list[bytes]]:
    """Reasoning as open models show it: as content, not as a summary."""
    content = [{"type": "reasoning_text", "text": "one two"}, {"type": "reasoning_text", "text": "three"}]
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "content": content}
    whole = response([item, _message("42")])
    at = {"item_id": "rs_1", "output_index": 0}
    return whole, streamed(
        whole,
        {"type": "response.output_item.added", "output_index": 0, "item": item | {"content": []}},
        {"type": "response.reasoning_text.delta", "delta": "one ", "content_index": 0, **at},
        {"type": "response.reasoning_text.delta", "delta": "two", "content_index": 0, **at},
        {"type": "response.content_part.done", "part": content[0], "content_index": 0, **at},
        {"type": "response.reasoning_text.delta", "delta": "three", "content_index": 1, **at},
        {"type": "response.content_part.done", "part": content[1], "content_index": 1, **at},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        _delta("4", item=1),
        _delta("2", item=1),
    )


def _custom_call() -> tuple[Json, list[bytes]]:
    item = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "apply_patch", "input": "*** Begin\n+1"}
    whole = response([item])
    at = {"item_id": "ctc_1", "output_index": 0}
    return whole, streamed(
        whole,
        {"type": "response.output_item.added", "output_index": 0, "item": item | {"input": ""}},
        {"type": "response.custom_tool_call_input.delta", "delta": "*** Begin", **at},
        {"type": "response.custom_tool_call_input.delta", "delta": "\n+1", **at},
        {"type": "response.custom_tool_call_input.done", "input": item["input"], **at},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
    )


def _logprobs() -> tuple[Json, list[bytes]]:
    top = {"token": "Hi", "bytes": [72, 105], "logprob": -0.5}
    logprobs = [top | {"top_logprobs": [top]}, {"token": "!", "bytes": [33], "logprob": -1.0, "top_logprobs": []}]
    item = _message("Hi!")
    item["content"][0]["logprobs"] = logprobs
    whole = response([item])
    return whole, streamed(whole, _delta("Hi", logprobs=logprobs[:1]), _delta("!", logprobs=logprobs[1:]))


def _filtered() -> tuple[Json, list[bytes]]:
    whole = response([_message("I ")], "incomplete", incomplete_details={"reason": "content_filter"})
    return whole, streamed(whole, _delta("I "))


RECORDED: dict[str, tuple[Json, list[bytes]]] = {
    **{scenario: _scripted(scenario) for scenario in SCENARIOS if scenario != "cut"},
    "only-done-events": _only_done_events(),
    "raw-reasoning": _raw_reasoning(),
    "custom-call": _custom_call(),
    "logprobs": _logprobs(),
    "content-filter": _filtered(),
}
