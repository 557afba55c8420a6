"""Calls without reported usage are counted by delivered output and request input: every path, streamed and not."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.billing import Tokens
from policy.endpoints import Target
from policy.token_estimate import AUDIO_TOKENS, DOCUMENT_TOKENS, IMAGE_TOKENS
from proxy.accounting.metering import AnswerReader
from proxy.answers import Headers
from proxy.json_text.large_json import parse_with_placeholders
from proxy.json_text.sliced_json import parse_in_slices
from proxy.time_slices import at_once
from tests.proxy.dialects import samples
from tests.proxy.dialects.samples import (
    CHAT,
    CUTS,
    JSON,
    MESSAGES,
    SLUG,
    SSE,
    VENDOR_A,
    VENDOR_B,
    VENDOR_C,
    cut,
    events,
    frames,
    received,
)

RESPONSES = "/v1/responses"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
_COUNTS = Path(__file__).parents[3] / "policy" / "token_counts.json"
FIXTURES = {fixture["name"]: fixture for fixture in json.loads(_COUNTS.read_bytes())}
LEAST = 0.6
MOST = 1.7
TEXTS = ["English prose", "Chinese", "Arabic", "JavaScript code", "JSON, compact"]
Payload = Any


def pieces_of(text: str) -> list[str]:
    return [text[at : at + 5] for at in range(0, len(text), 5)]


def chat_stream(text: str, **more: Any) -> bytes:
    chunks = [{"role": "assistant", "content": ""}, *({"content": piece} for piece in pieces_of(text))]
    return frames(*(chat_chunk(delta, **more) for delta in chunks), has_done=False)


def chat_chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    choices = [{"index": 0, "delta": delta, "finish_reason": None}]
    return {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": choices, **more}


def completions_stream(text: str) -> bytes:
    return frames(*({"model": "m", "choices": [{"text": piece}]} for piece in pieces_of(text)), has_done=False)


def responses_stream(text: str) -> bytes:
    deltas = [
        {"type": "response.output_text.delta", "sequence_number": n, "delta": piece}
        for n, piece in enumerate(pieces_of(text))
    ]
    part = {"type": "output_text", "text": text}
    return events(
        {"type": "response.created", "response": {"model": "m", "instructions": "long " * 200}},
        *deltas,
        {"type": "response.output_text.done", "text": text},
        {"type": "response.content_part.done", "part": part},
        {"type": "response.output_item.done", "item": {"type": "message", "content": [part]}},
    )


def messages_stream(text: str) -> bytes:
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
        for piece in pieces_of(text)
    ]
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    return events({"type": "message_start", "message": {"model": "m"}}, block, *deltas)


def chat_body(text: str) -> dict[str, Any]:
    return {"model": "m", "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}


def messages_body(text: str) -> dict[str, Any]:
    return {"model": "m", "type": "message", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}


def responses_body(text: str) -> dict[str, Any]:
    output = [{"type": "message", "content": [{"type": "output_text", "text": text}]}]
    return {"model": "m", "status": "completed", "instructions": "long " * 200, "output": output}


WAYS: list[tuple[str, Target, Callable[[str], bytes], Callable[[str], dict[str, Any]]]] = [
    (CHAT, VENDOR_B, chat_stream, chat_body),
    (CHAT, VENDOR_C, chat_stream, chat_body),
    (CHAT, VENDOR_A, messages_stream, messages_body),
    (COMPLETIONS, VENDOR_B, completions_stream, lambda text: {"model": "m", "choices": [{"text": text}]}),
    (RESPONSES, VENDOR_B, responses_stream, responses_body),
    (MESSAGES, VENDOR_A, messages_stream, messages_body),
    (MESSAGES, VENDOR_B, chat_stream, chat_body),
]


def asking(path: str, text: str, *, stream: bool) -> Any:
    name = {COMPLETIONS: "prompt", RESPONSES: "input", EMBEDDINGS: "input"}.get(path, "messages")
    messages: Any = [{"role": "user", "content": text}] if name == "messages" else text
    return received({"model": SLUG, name: messages, "stream": stream, "max_tokens": 32_000}, path)


def counted(answer: AnswerReader, request: Any, pieces: Iterable[bytes], *, ended: bool = False) -> Tokens:
    """The tokens billed for an answer that arrived in these pieces."""
    delivered = samples.delivered_counter(request)
    for piece in pieces:
        if output := answer.feed(piece):
            delivered.pending.append(output)
    if ended:
        delivered.pending.append(answer.end())
    assert answer.reported.tokens is None
    return delivered.tokens(answer.reported.input)


def check(fixture: dict[str, Any], tokens: int) -> None:
    assert LEAST <= tokens / fixture["o200k_base"] <= MOST


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(("path", "target", "stream", "_body"), WAYS)
def test_cut_stream_is_counted(path: str, target: Target, stream: Any, _body: Any, name: str) -> None:
    fixture = FIXTURES[name]
    request = asking(path, fixture["text"], stream=True)
    answer = samples.answer_reader(request, target, SSE)
    tokens = counted(answer, request, [stream(fixture["text"])])
    check(fixture, tokens.output)
    check(fixture, tokens.input)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(("path", "target", "_stream", "body"), WAYS)
def test_body_without_usage_is_counted(path: str, target: Target, _stream: Any, body: Any, name: str) -> None:
    fixture = FIXTURES[name]
    request = asking(path, fixture["text"], stream=False)
    answer = samples.answer_reader(request, target, JSON)
    tokens = counted(answer, request, [orjson.dumps(body(fixture["text"]))], ended=True)
    check(fixture, tokens.output)
    check(fixture, tokens.input)


@given(CUTS)
def test_segmentation_does_not_change_the_count(places: list[int]) -> None:
    """Incomplete frames were not delivered."""
    fixture = FIXTURES["Chinese"]
    request = asking(CHAT, "Hello", stream=True)
    answer = samples.answer_reader(request, VENDOR_B, SSE)
    stream = chat_stream(fixture["text"]) + b'data: {"id":"c","choices":[{"delta":{"content":"not whole'
    check(fixture, counted(answer, request, cut(stream, places)).output)


def crlf(text: str) -> bytes:
    return chat_stream(text).replace(b"\n", b"\r\n")


def ascii_only(text: str) -> bytes:
    chunks = [json.dumps(chat_chunk({"content": piece})) for piece in pieces_of(text)]
    return b"".join(b"data: " + chunk.encode() + b"\n\n" for chunk in chunks)


def obfuscated(text: str) -> bytes:
    """Each delta has a different suffix."""
    return frames(
        *(chat_chunk({"content": p}, obfuscation="x" * (n % 9)) for n, p in enumerate(pieces_of(text))), has_done=False
    )


def reasoned(text: str) -> bytes:
    return frames(*(chat_chunk({"reasoning": p, "reasoning_content": p}) for p in pieces_of(text)), has_done=False)


def thought(text: str) -> bytes:
    return frames(*(chat_chunk({"reasoning_content": p}) for p in pieces_of(text)), has_done=False)


def with_logprobs(text: str) -> bytes:
    logprobs = {"content": [{"token": "x" * 50, "logprob": -1, "top_logprobs": [{"token": "y" * 50}]}]}
    choices = [[{"index": 0, "delta": {"content": p}, "logprobs": logprobs}] for p in pieces_of(text)]
    return frames(*({"model": "m", "choices": c} for c in choices), has_done=False)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("form", [crlf, ascii_only, obfuscated, reasoned, thought, with_logprobs])
@pytest.mark.parametrize("content_type", ["text/event-stream", "text/plain"])
def test_every_form_of_stream_is_counted(form: Any, name: str, content_type: str) -> None:
    """The content type of the answer need not say event stream."""
    fixture = FIXTURES[name]
    request = asking(CHAT, "Hello", stream=True)
    headers: Headers = [("content-type", content_type)]
    answer = samples.answer_reader(request, VENDOR_B, headers)
    ended = content_type != "text/event-stream"
    check(fixture, counted(answer, request, cut(form(fixture["text"]), range(0, 20_000, 700)), ended=ended).output)


def test_tool_calls_are_counted_with_names_and_arguments() -> None:
    arguments = '{"city": "Paris", "unit": "celsius"}'
    calls = [
        {"tool_calls": [{"index": 0, "id": "t", "function": {"name": "get_weather", "arguments": ""}}]},
        *({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces_of(arguments)),
    ]
    request = asking(CHAT, "Hello", stream=True)
    answer = samples.answer_reader(request, VENDOR_B, SSE)
    streamed = counted(answer, request, [frames(*map(chat_chunk, calls), has_done=False)]).output
    assert LEAST <= streamed / 13 <= MOST  # get_weather: 2, the arguments: 11
    message = {"tool_calls": [{"id": "t", "function": {"name": "get_weather", "arguments": arguments}}]}
    reader = samples.answer_reader(asking(CHAT, "", stream=False), VENDOR_B, JSON)
    body = orjson.dumps({"model": "m", "choices": [{"message": message}]})
    assert LEAST <= counted(reader, request, [body], ended=True).output / 13 <= MOST


def test_tool_use_of_messages_is_counted_as_json() -> None:
    block = {"type": "tool_use", "id": "t", "name": "get_weather", "input": {"city": "Paris", "unit": "celsius"}}
    reader = samples.answer_reader(asking(MESSAGES, "", stream=False), VENDOR_A, JSON)
    body = orjson.dumps({"model": "m", "type": "message", "content": [block]})
    assert LEAST <= counted(reader, asking(MESSAGES, "", stream=False), [body], ended=True).output / 13 <= MOST


def test_all_choices_are_counted() -> None:
    choices = [{"index": n, "message": {"content": "Yes, of course."}} for n in range(5)]
    request = asking(CHAT, "", stream=False)
    answer = samples.answer_reader(request, VENDOR_B, JSON)
    tokens = counted(answer, request, [orjson.dumps({"model": "m", "choices": choices})], ended=True)
    assert LEAST <= tokens.output / 25 <= MOST


@pytest.mark.parametrize("given_input", ["a text", ["two", "texts"], [1, 2, 3, 4], [[1, 2], [3, 4]]])
def test_embeddings_without_usage_cost_their_input(given_input: Any) -> None:
    request = received({"model": SLUG, "input": given_input}, EMBEDDINGS)
    answer = samples.answer_reader(request, VENDOR_B, JSON)
    body = orjson.dumps({"model": "m", "data": [{"embedding": [0.25] * 1000}]})
    tokens = 2 if isinstance(given_input, str) or isinstance(given_input[0], str) else 4
    assert counted(answer, request, [body], ended=True) == Tokens(input=tokens, output=0)


def test_audio_answer_costs_no_output() -> None:
    request = asking(CHAT, "Hello", stream=False)
    delivered = samples.delivered_counter(request, "audio/mpeg")
    delivered.pending.append(bytes(range(256)) * 100)
    assert delivered.tokens(None).output == 0


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * 9000}}
SCAN = {"type": "image", "source": {"type": "base64", "data": "QUJD" * 9000}}
PAPER = {"type": "document", "source": {"type": "base64", "data": "QUJD" * 9000}}
TYPED = {"type": "document", "source": {"type": "text", "data": "four words of text"}}
VOICE = {"type": "input_audio", "input_audio": {"data": "QUJD" * 9000, "format": "wav"}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [SCAN, {"type": "text", "text": "two words"}]}


@pytest.mark.parametrize(
    ("parts", "tokens"),
    [
        ([PICTURE], IMAGE_TOKENS),
        ([PICTURE, PICTURE, SCAN], 3 * IMAGE_TOKENS),
        ([PAPER], DOCUMENT_TOKENS),
        ([TYPED], 4),
        ([VOICE, {"type": "text", "text": "one two"}], AUDIO_TOKENS + 2),
        ([RESULT], IMAGE_TOKENS + 2),
        ([{"type": [], "text": "odd"}], 1),
    ],
)
def test_other_media_of_a_request_cost_a_constant_each(parts: list[Any], tokens: int) -> None:
    request = received({"model": SLUG, "messages": [{"role": "user", "content": parts}]})
    assert samples.delivered_counter(request).tokens(None) == Tokens(input=tokens, output=0)


def test_instructions_and_tools_count_as_input() -> None:
    tool = {"name": "f", "description": "ten words " * 5, "input_schema": {"type": "object"}}
    body = {"model": SLUG, "messages": [], "system": [{"type": "text", "text": "a b c"}], "tools": [tool]}
    request = received(body, MESSAGES)
    tokens = samples.delivered_counter(request).tokens(None)
    assert LEAST <= tokens.input / (3 + 25) <= MOST


@pytest.mark.parametrize("name", TEXTS)
def test_long_request_is_counted_by_a_sample(name: str) -> None:
    """A request with placeholders for its long strings is counted by a sample too."""
    fixture = FIXTURES[name]
    times = 400_000 // len(fixture["text"])
    body = orjson.dumps({"model": SLUG, "messages": [{"role": "user", "content": fixture["text"] * times}]})
    request = received(body)
    result = parse_with_placeholders(body)
    assert result is not None
    request.json, request.outline = result
    tokens = samples.delivered_counter(request).tokens(None)
    assert LEAST <= tokens.input / (fixture["o200k_base"] * times) <= MOST
    plain = fixture["text"].isascii() and not set(fixture["text"]) & set('\n"\\')
    assert (request.outline is not None) == plain


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("name", TEXTS)
def test_request_parsed_in_slices_is_counted_by_a_sample(name: str, ascii_only: bool) -> None:
    """All its strings have placeholders, including those of its tools."""
    fixture = FIXTURES[name]
    times = 600_000 // len(fixture["text"])
    tools = [{"type": "function", "function": {"name": "f", "description": fixture["text"]}}] * 50
    messages = [{"role": "user", "content": fixture["text"] * times}]
    body = json.dumps({"model": SLUG, "messages": messages, "tools": tools}, ensure_ascii=ascii_only).encode()
    request = received(body)
    request.json, request.outline = at_once(parse_in_slices(body))
    assert request.outline is not None
    tokens = samples.delivered_counter(request).tokens(None)
    assert LEAST <= tokens.input / (fixture["o200k_base"] * (times + 50)) <= MOST


@pytest.mark.parametrize("name", TEXTS)
def test_body_too_long_to_parse_again_is_counted_by_a_sample(name: str) -> None:
    fixture = FIXTURES[name]
    times = 1_100_000 // len(fixture["text"].encode())
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": fixture["text"] * times}}]}
    request = received({"model": SLUG, "messages": []})
    delivered = samples.delivered_counter(request)
    delivered.pending.append(json.dumps(answer).encode())
    assert LEAST <= delivered.tokens(None).output / (fixture["o200k_base"] * times) <= MOST


def test_request_of_very_many_values_is_counted_by_its_first_ones() -> None:
    parts = [{"type": "text", "text": "four words of text"}] * 100_000
    request = received({"model": SLUG, "messages": [{"role": "user", "content": parts}]})
    tokens = samples.delivered_counter(request).tokens(None)
    assert LEAST <= tokens.input / 400_000 <= MOST


_CHAT_NAMES = "choices delta message content text tool_calls function arguments reasoning reasoning_details audio name"
_OTHER_NAMES = "type input source data output summary item content_block messages system"
_NAMES = f"{_CHAT_NAMES} {_OTHER_NAMES}".split()
JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4),
    max_leaves=12,
)


@given(JUNK, st.sampled_from([CHAT, COMPLETIONS, RESPONSES, MESSAGES, EMBEDDINGS]), st.booleans())
def test_hostile_shapes_raise_nothing(junk: Any, path: str, streamed: bool) -> None:
    body = junk if isinstance(junk, dict) else {"messages": junk, "choices": junk, "output": junk, "content": junk}
    request = received({"input": junk, "prompt": junk, "tools": junk, **body, "model": SLUG}, path)
    delivered = samples.delivered_counter(request)
    delivered.pending.append(b"data: " + orjson.dumps(body) + b"\n\n" if streamed else orjson.dumps(body))
    tokens = delivered.tokens(None)
    assert tokens.input >= 0
    assert tokens.output >= 0


def test_only_the_last_piece_of_a_large_body_is_held() -> None:
    """A body too large to hold is weighed piece by piece, as if all of it were output."""
    request = asking(CHAT, "", stream=False)
    delivered = samples.delivered_counter(request)
    piece = ("word " * 20_000).encode()
    for _ in range(5):
        delivered.pending.append(piece)
    assert LEAST <= delivered.tokens(None).output / 100_000 <= MOST
