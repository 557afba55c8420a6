"""Answers: reading and writing one takes work in proportion to what it holds, whole or streamed, in each dialect."""

from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from proxy.dialects import sse
from proxy.dialects.chat_completions import dialect as chat_dialect
from proxy.dialects.counting.delivered_text import FixedTokens, StreamCounter
from proxy.dialects.messages import dialect as messages_dialect
from proxy.dialects.middle.dialect import AnswerContext, Dialect
from proxy.dialects.middle.request import ReasoningSettings, Request, Tool
from proxy.dialects.responses import dialect as responses_dialect
from tests.fakes.seals import seals_of
from tests.proxy.dialects.samples import SLUG, received
from tests.proxy.growth.work import CountedBytes, check_grows_linearly, counted

Json = dict[str, Any]
Build = Callable[[int], list[Json]]
DIALECTS: dict[str, Dialect] = {
    each.name: each for each in (chat_dialect.DIALECT, messages_dialect.DIALECT, responses_dialect.DIALECT)
}
PATHS = {each.name: each.path for each in DIALECTS.values()}
DONE: Json = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def chunk(**delta: Any) -> Json:
    return {"id": "a", "choices": [{"index": 0, "delta": delta}]}


def call_chunk(number: int, text: str, **more: Any) -> Json:
    return chunk(tool_calls=[{"index": number, "function": {"arguments": text} | more}])


def named(number: int, name: str = "f", id: str | None = None) -> Json:
    call = {"index": number, "id": id or f"c{number}", "function": {"name": name, "arguments": ""}}
    return chunk(tool_calls=[call])


def block(number: int, **block: Any) -> Json:
    return {"type": "content_block_start", "index": number, "content_block": block}


def delta(number: int, **delta: Any) -> Json:
    return {"type": "content_block_delta", "index": number, "delta": delta}


def stop(number: int) -> Json:
    return {"type": "content_block_stop", "index": number}


def said(kind: str, number: int = 0, **more: Any) -> Json:
    return {"type": f"response.{kind}", "output_index": number, **more}


CHAT_STREAMS: dict[str, Build] = {
    "texts": lambda n: [*[chunk(content="text")] * n, DONE],
    "reasoning": lambda n: [*[chunk(reasoning_content="so")] * n, chunk(content="text"), DONE],
    "blocks of reasoning": lambda n: [*[chunk(reasoning_content="so"), chunk(content="text")] * n, DONE],
    "details of reasoning": lambda n: [
        *[chunk(reasoning_details=[{"type": "t", "index": number, "text": "so"}]) for number in range(n)],
        chunk(content="text"),
        DONE,
    ],
    "details in one chunk": lambda n: [
        chunk(reasoning_details=[{"type": "t", "index": number, "text": "so"} for number in range(n)]),
        chunk(content="text"),
        DONE,
    ],
    "refusals": lambda n: [*[chunk(refusal="no")] * n, DONE],
    "calls": lambda n: [one for k in range(n) for one in (named(k), call_chunk(k, "{}"))] + [DONE],
    "calls side by side": lambda n: [
        *[named(number) for number in range(n)],
        *[call_chunk(number, part) for part in ("{", "}") for number in range(n)],
        DONE,
    ],
    "calls of one id": lambda n: [*[named(number, id="c") for number in range(n)], DONE],
    "calls without names": lambda n: [*[call_chunk(number, "{}") for number in range(n)], DONE],
    "arguments": lambda n: [named(0), *[call_chunk(0, "1,")] * n, DONE],
    "input of custom tools": lambda n: [
        *[one for k in range(n) for one in (named(k, "custom"), call_chunk(k, '{"input":"x"}'))],
        DONE,
    ],
    "probabilities": lambda n: [
        *[{"choices": [{"delta": {"content": "t"}, "logprobs": {"content": [{"token": "t", "logprob": 0}]}}]}] * n,
        DONE,
    ],
}
MESSAGES_STREAMS: dict[str, Build] = {
    "texts": lambda n: [block(0, type="text", text=""), *[delta(0, type="text_delta", text="x")] * n, END_OF_MESSAGE],
    "blocks": lambda n: (
        [
            one
            for k in range(n)
            for one in (block(k, type="text", text=""), delta(k, type="text_delta", text="x"), stop(k))
        ]
        + [END_OF_MESSAGE]
    ),
    "thinking": lambda n: [
        block(0, type="thinking", thinking=""),
        *[delta(0, type="thinking_delta", thinking="so")] * n,
        stop(0),
        END_OF_MESSAGE,
    ],
    "signatures": lambda n: [
        block(0, type="thinking", thinking="so"),
        *[delta(0, type="signature_delta", signature="s")] * n,
        stop(0),
        END_OF_MESSAGE,
    ],
    "inputs": lambda n: [
        block(0, type="tool_use", id="t", name="f", input={}),
        *[delta(0, type="input_json_delta", partial_json="1,")] * n,
        stop(0),
        END_OF_MESSAGE,
    ],
    "calls": lambda n: [
        *[one for k in range(n) for one in (block(k, type="tool_use", id=f"t{k}", name="f", input={}), stop(k))],
        END_OF_MESSAGE,
    ],
    "calls that never end": lambda n: [
        *[block(k, type="tool_use", id=f"t{k}", name="f", input={}) for k in range(n)],
        END_OF_MESSAGE,
    ],
}
END_OF_MESSAGE: Json = {"type": "message_stop"}
COMPLETED: Json = {"type": "response.completed", "response": {"status": "completed", "output": []}}
RESPONSES_STREAMS: dict[str, Build] = {
    "texts": lambda n: [*[said("output_text.delta", delta="x")] * n, COMPLETED],
    "parts": lambda n: [
        *[said("output_text.delta", content_index=number, delta="x") for number in range(n)],
        COMPLETED,
    ],
    "messages": lambda n: [
        *[one for k in range(n) for one in (said("output_text.delta", k, delta="x"), said("output_item.done", k))],
        COMPLETED,
    ],
    "content that no delta told": lambda n: [
        said(
            "output_item.done",
            item={"type": "message", "content": [{"type": "output_text", "text": "x"}] * n},
            **{f"member_{number}": number for number in range(n)},
        ),
        COMPLETED,
    ],
    "refusals that no delta told": lambda n: [
        said("output_item.done", item={"type": "message", "content": [{"type": "refusal", "refusal": "no"}] * n}),
        COMPLETED,
    ],
    "calls": lambda n: [
        *[
            one
            for k in range(n)
            for one in (
                said("output_item.added", k, item={"type": "function_call", "call_id": f"c{k}", "name": "f"}),
                said("function_call_arguments.delta", k, delta="{}"),
                said("output_item.done", k, item={"type": "function_call", "call_id": f"c{k}", "name": "f"}),
            )
        ],
        COMPLETED,
    ],
    "calls side by side": lambda n: [
        *[
            said("output_item.added", k, item={"type": "function_call", "call_id": f"c{k}", "name": "f"})
            for k in range(n)
        ],
        *[said("function_call_arguments.delta", k, delta=part) for part in ("{", "}") for k in range(n)],
        COMPLETED,
    ],
    "one call begun again": lambda n: [
        *[said("output_item.added", 0, item={"type": "function_call", "call_id": "c", "name": "f"})] * n,
        COMPLETED,
    ],
    "summaries": lambda n: [
        *[said("reasoning_summary_text.delta", delta="so", summary_index=number) for number in range(n)],
        COMPLETED,
    ],
    "items of the end": lambda n: [
        said("output_text.delta", delta="x"),
        COMPLETED
        | {"response": {"status": "completed", "output": [{"type": "function_call", "name": "f", "call_id": "c"}] * n}},
    ],
}
STREAMS = [
    pytest.param(spoken, caller, build, id=f"{name} of {spoken} to {caller}")
    for spoken, streams in zip(DIALECTS, (CHAT_STREAMS, MESSAGES_STREAMS, RESPONSES_STREAMS), strict=True)
    for caller in DIALECTS
    if caller != spoken
    for name, build in streams.items()
]


def context() -> AnswerContext:
    request = Request(
        [], tools=[Tool("custom", custom={"type": "text"})], reasoning=ReasoningSettings(True, visible=True)
    )
    return AnswerContext(SLUG, request, 1, seals_of())


@pytest.mark.parametrize(("target", "caller", "build"), STREAMS)
def test_translation_grows_with_the_stream(target: str, caller: str, build: Build) -> None:
    def prepare(size: int) -> Callable[[], object]:
        events = counted(build(size))
        reader = DIALECTS[target].new_stream_reader()
        writer = DIALECTS[caller].new_stream_writer(context())

        def act() -> None:
            for event in events:
                writer.write(reader.read(event))
            writer.write(reader.done_received())
            writer.closing(None)

        return act

    check_grows_linearly(prepare)


def message_of(n: int) -> Json:
    calls = [{"id": f"c{k}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for k in range(n)]
    details = [{"type": "reasoning.text", "text": "so", "index": number} for number in range(n)]
    return {"role": "assistant", "content": "text", "tool_calls": calls, "reasoning_details": details}


ANSWERS: dict[str, Callable[[int], Json]] = {
    "chat_completions": lambda n: {"id": "a", "choices": [{"index": 0, "message": message_of(n)}]},
    "messages": lambda n: {
        "id": "a",
        "content": [
            one
            for k in range(n)
            for one in (
                {"type": "text", "text": "text"},
                {"type": "thinking", "thinking": "so", "signature": "s"},
                {"type": "tool_use", "id": f"t{k}", "name": "f", "input": {}},
            )
        ],
    },
    "responses": lambda n: {
        "id": "a",
        "output": [
            one
            for k in range(n)
            for one in (
                {"type": "message", "content": [{"type": "output_text", "text": "text"}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
                {"type": "function_call", "call_id": f"c{k}", "name": "f", "arguments": "{}"},
            )
        ],
    },
}


@pytest.mark.parametrize("caller", DIALECTS)
@pytest.mark.parametrize("target", DIALECTS)
def test_translation_grows_with_the_answer(target: str, caller: str) -> None:
    def prepare(size: int) -> Callable[[], object]:
        answer = counted(ANSWERS[target](size))
        return lambda: DIALECTS[caller].write_answer(DIALECTS[target].read_answer(answer), context(), None)

    check_grows_linearly(prepare)


def sent(frames: Iterator[bytes] | list[bytes]) -> list[bytes]:
    return [CountedBytes(frame) for frame in frames]


def frame(event: Json) -> bytes:
    name = b"event: %b\n" % event["type"].encode() if "type" in event else b""
    return name + b"data: " + orjson.dumps(event) + b"\n\n"


PASSED: dict[str, Callable[[int], list[bytes]]] = {
    "frames": lambda n: [frame(chunk(content=str(number))) for number in range(n)],
    "frames at once": lambda n: [b"".join(frame(chunk(content=str(number))) for number in range(n))],
    "bytes of a frame": lambda n: [b"data: ", *[b"1"] * n, b"\n\n"],
    "lines of a frame": lambda n: [*[b"data: 1\n"] * n, b"\n"],
    "returns in a frame": lambda n: [*[b"1\r"] * n, b"\n\n"],
    "a comment": lambda n: [b":", *[b"1"] * n, b"\n"],
    "returns in a comment": lambda n: [b":", *[b"1\r"] * n, b"\n\n"],
    "comments": lambda n: [b": ping\n\n"] * n,
    "lines after a byte-order mark": lambda n: [b"data: 1\n\n", b"\xef", *[b"1\n"] * n, b"\n"],
    "events": lambda n: [b"event: message\n", b"data: {}\n\n"] * n,
}


@pytest.mark.parametrize("build", PASSED.values(), ids=PASSED)
@pytest.mark.parametrize("name", DIALECTS)
def test_passing_grows_with_the_stream(name: str, build: Callable[[int], list[bytes]]) -> None:
    def prepare(size: int) -> Callable[[], object]:
        pieces = sent(build(size))
        request = received({"model": SLUG, "stream": True}, PATHS[name])
        reader = DIALECTS[name].stream_reader(request, 1000)

        def act() -> None:
            for piece in pieces:
                reader.feed(piece)
            reader.end()

        return act

    check_grows_linearly(prepare)


@pytest.mark.parametrize("build", PASSED.values(), ids=PASSED)
def test_framing_grows_with_the_stream(build: Callable[[int], list[bytes]]) -> None:
    def prepare(size: int) -> Callable[[], object]:
        pieces = sent(build(size))
        framer = sse.Framer()
        return lambda: [framer.split(piece) for piece in pieces]

    check_grows_linearly(prepare)


@pytest.mark.parametrize("build", PASSED.values(), ids=PASSED)
def test_counting_grows_with_what_was_delivered(build: Callable[[int], list[bytes]]) -> None:
    def prepare(size: int) -> Callable[[], object]:
        counter = StreamCounter(FixedTokens(1), chat_dialect.DIALECT.texts)
        counter.pending += build(size)
        return lambda: counter.tokens(None)

    check_grows_linearly(prepare)
