"""Answers of Chat Completions servers as they were observed, whole and streamed, with equal content."""

from collections.abc import Iterable
from typing import Any

import orjson

Json = dict[str, Any]

USAGE: Json = {
    "prompt_tokens": 90,
    "completion_tokens": 7,
    "total_tokens": 97,
    "prompt_tokens_details": {"cached_tokens": 80},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
ID = "chatcmpl-9"
DONE = b"data: [DONE]\n\n"


def whole(message: Json, finish_reason: str = "stop", **choice: Any) -> Json:
    choices = [{"index": 0, "message": {"role": "assistant", "content": None} | message} | choice]
    choices[0]["finish_reason"] = finish_reason
    return {"id": ID, "object": "chat.completion", "created": 5, "model": "m", "choices": choices, "usage": USAGE}


def chunk(delta: Json, finish_reason: str | None = None, **choice: Any) -> Json:
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason} | choice]
    return {"id": ID, "object": "chat.completion.chunk", "created": 5, "model": "m", "choices": choices}


def stream(deltas: Iterable[Json], finish_reason: str = "stop", **choice: Any) -> list[bytes]:
    chunks = [chunk({"role": "assistant", "content": ""}), *map(chunk, deltas), chunk({}, finish_reason, **choice)]
    return frames([*chunks, chunk({}) | {"choices": [], "usage": USAGE}])


def frames(chunks: Iterable[Json]) -> list[bytes]:
    return [*(b"data: %b\n\n" % orjson.dumps(one) for one in chunks), DONE]


def call(id: str, name: str, arguments: str, **members: Any) -> Json:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}} | members


def call_delta(index: int | None, id: str | None, name: str | None, arguments: str, **members: Any) -> Json:
    """A delta with one entry of `tool_calls`; what is None is left out."""
    entry: Json = {"function": {"arguments": arguments} | ({} if name is None else {"name": name})} | members
    entry |= {} if id is None else {"id": id, "type": "function"}
    entry |= {} if index is None else {"index": index}
    return {"tool_calls": [entry]}


OSLO = '{"city":"Oslo"}'
ROME = '{"city":"Rome"}'
TWO_CALLS = whole({"tool_calls": [call("c1", "weather", OSLO), call("c2", "weather", ROME)]}, "tool_calls")
LOGPROB: Json = {"token": "hi", "logprob": -0.5, "bytes": [104, 105], "top_logprobs": []}

RECORDED: dict[str, tuple[Json, list[bytes]]] = {
    "text": (whole({"content": "Hello, wörld"}), stream([{"content": "Hello, "}, {"content": "wörld"}])),
    "text cut by the cap": (whole({"content": "Hel"}, "length"), stream([{"content": "Hel"}], "length")),
    "a stop sequence that the server names": (
        whole({"content": "a"}, stop_reason="END"),
        stream([{"content": "a"}], stop_reason="END"),
    ),
    "a refusal": (
        whole({"refusal": "I will not."}),
        stream([{"refusal": "I will "}, {"refusal": "not."}]),
    ),
    "logprobs": (
        whole({"content": "hi"}, logprobs={"content": [LOGPROB], "refusal": None}),
        frames(
            [
                chunk({"role": "assistant", "content": ""}),
                chunk({"content": "hi"}, logprobs={"content": [LOGPROB], "refusal": None}),
                chunk({}, "stop"),
                chunk({}) | {"choices": [], "usage": USAGE},
            ]
        ),
    ),
    "one call after text": (
        whole({"content": "Let me see.", "tool_calls": [call("c1", "weather", OSLO)]}, "tool_calls"),
        stream(
            [
                {"content": "Let me see."},
                call_delta(0, "c1", "weather", ""),
                call_delta(0, None, None, OSLO[:5]),
                call_delta(0, None, None, OSLO[5:]),
            ],
            "tool_calls",
        ),
    ),
    "two calls, one after the other": (
        TWO_CALLS,
        stream(
            [
                call_delta(0, "c1", "weather", OSLO[:4]),
                call_delta(0, None, None, OSLO[4:]),
                call_delta(1, "c2", "weather", ""),
                call_delta(1, None, None, ROME),
            ],
            "tool_calls",
        ),
    ),
    "two calls, interleaved": (
        TWO_CALLS,
        stream(
            [
                call_delta(0, "c1", "weather", OSLO[:4]),
                call_delta(1, "c2", "weather", ROME[:7]),
                call_delta(0, None, None, OSLO[4:]),
                call_delta(1, None, None, ROME[7:]),
            ],
            "tool_calls",
        ),
    ),
    "two calls without an index": (
        TWO_CALLS,
        stream(
            [
                call_delta(None, "c1", "weather", OSLO[:4]),
                call_delta(None, None, None, OSLO[4:]),
                call_delta(None, "c2", "weather", ROME),
            ],
            "stop",
        ),
    ),
    "two calls, both with index 0": (
        TWO_CALLS,
        stream([call_delta(0, "c1", "weather", OSLO), call_delta(0, "c2", "weather", ROME)], "stop"),
    ),
    "two calls in one chunk": (
        TWO_CALLS,
        stream(
            [
                {
                    "tool_calls": [
                        *call_delta(0, "c1", "weather", OSLO)["tool_calls"],
                        *call_delta(1, "c2", "weather", ROME)["tool_calls"],
                    ]
                }
            ],
            "tool_calls",
        ),
    ),
    "id and name in every delta": (
        TWO_CALLS,
        stream(
            [
                call_delta(0, "c1", "weather", OSLO[:4]),
                call_delta(0, "c1", "weather", OSLO[4:]),
                call_delta(1, "c2", "weather", ROME[:4]),
                call_delta(1, "c2", "weather", ROME[4:]),
            ],
            "tool_calls",
        ),
    ),
    "calls in the chunk that ends the answer": (
        TWO_CALLS,
        frames(
            [
                chunk({"role": "assistant"} | call_delta(0, "c1", "weather", OSLO)),
                chunk(call_delta(0, "c2", "weather", ROME), "stop") | {"usage": USAGE},
            ]
        ),
    ),
    "a call with a thought signature": (
        whole(
            {"tool_calls": [call("c1", "weather", OSLO, extra_content={"google": {"thought_signature": "c2ln"}})]},
            "tool_calls",
        ),
        stream(
            [call_delta(0, "c1", "weather", OSLO, extra_content={"google": {"thought_signature": "c2ln"}})],
            "tool_calls",
        ),
    ),
    "reasoning, then text": (
        whole({"reasoning_content": "Hm. So.", "content": "Yes"}),
        stream([{"reasoning_content": "Hm. "}, {"reasoning_content": "So."}, {"content": "Yes"}]),
    ),
    "reasoning under another name, then a call": (
        whole({"reasoning": "Hm. So.", "tool_calls": [call("c1", "weather", OSLO)]}, "tool_calls"),
        stream([{"reasoning": "Hm. "}, {"reasoning": "So."}, call_delta(0, "c1", "weather", OSLO)], "tool_calls"),
    ),
    "reasoning in details": (
        whole(
            {
                "reasoning": "Hm. So.",
                "reasoning_details": [
                    {"type": "reasoning.text", "index": 0, "text": "Hm. So.", "signature": "sig"},
                    {"type": "reasoning.encrypted", "index": 1, "data": "abc"},
                ],
                "content": "Yes",
            }
        ),
        stream(
            [
                {
                    "reasoning": "Hm. ",
                    "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "Hm. ", "signature": None}],
                },
                {"reasoning": "So.", "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "So."}]},
                {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "", "signature": "sig"}]},
                {"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "abc"}]},
                {"content": "Yes"},
            ]
        ),
    ),
}
"""Recorded answers by what is special about each: the body, and the frames of the stream."""
