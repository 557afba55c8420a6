"""Answers of the Responses dialect: streamed and whole are the same, at every cut; the vendor's SDK agrees."""

import re
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import orjson
import pytest
from hypothesis import given
from openai.types.responses import Response, ResponseStreamEvent

from policy.billing import Tokens
from proxy.dialects.middle.answer import Event
from proxy.dialects.middle.dialect import AnswerContext
from proxy.dialects.middle.request import Text
from proxy.dialects.middle.sealing import unseal
from proxy.dialects.responses.dialect import DIALECT
from proxy.dialects.responses.output_items import with_bytes
from proxy.dialects.sse import Framer, data_of
from tests.proxy.dialects.responses.gathered import gathered
from tests.proxy.dialects.responses.recorded import RECORDED
from tests.proxy.dialects.samples import CUTS, cut, payloads
from tests.upstream.dialects.shapes import mismatches

Json = dict[str, Any]
ASKED: Json = {
    "model": "acme/fast",
    "input": "hi",
    "instructions": "Be brief.",
    "metadata": {"team": "a"},
    "temperature": 0.5,
    "tools": [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}],
}
"""Of these calls, all answers repeat the settings."""
TOKENS = Tokens(input=9, output=4, cached_input=2)


def context(asked: Json = ASKED) -> AnswerContext:
    return AnswerContext("acme/fast", DIALECT.read_request(asked), 1_700_000_001)


def streamed_events(frames: list[bytes]) -> Iterator[list[Event]]:
    reader = DIALECT.new_stream_reader()
    framer = Framer()
    for data in frames:
        for piece, _ in framer.split(data):
            yield reader.read(orjson.loads(data_of(piece)))


def written_stream(events: Iterator[list[Event]], asked: Json = ASKED) -> bytes:
    writer = DIALECT.new_stream_writer(context(asked))
    written = b"".join([writer.write(some) for some in events])
    return written + writer.closing(TOKENS)


def check(value: Json, kind: Any) -> None:
    """`store` is in real answers, and not in the SDK's types."""
    found = [one for one in mismatches(value, kind) if one.path.rpartition(".")[2] != "store"]
    assert not found, (found, value)


@pytest.mark.parametrize("name", RECORDED)
@given(places=CUTS)
def test_streamed_answer_adds_up_to_the_whole_one_at_every_cut(name: str, places: list[int]) -> None:
    whole, frames = RECORDED[name]
    pieces = cut(b"".join(frames), places)
    assert gathered(event for events in streamed_events(pieces) for event in events) == DIALECT.read_answer(whole)


@pytest.mark.parametrize("name", RECORDED)
def test_written_answer_reads_as_the_answer(name: str) -> None:
    answer = DIALECT.read_answer(RECORDED[name][0])
    written = DIALECT.write_answer(answer, context(), TOKENS)
    check(written, Response)
    assert DIALECT.read_answer(returned(written)) == answer
    assert written["model"] == "acme/fast"
    assert written["store"] is False
    assert (written["metadata"], written["temperature"]) == (ASKED["metadata"], 0.5)


def returned(written: Json) -> Json:
    """The answer with its reasoning unsealed, as the target that sealed it reads it."""
    output = []
    for item in written["output"]:
        sealed = unseal(item.get("encrypted_content") or "") if item["type"] == "reasoning" else None
        output.append(sealed[1] if sealed else item)
    return written | {"output": output}


@pytest.mark.parametrize("name", RECORDED)
def test_written_stream_ends_with_the_whole_answer(name: str) -> None:
    whole, frames = RECORDED[name]
    written = written_stream(streamed_events(frames))
    events = payloads(written)
    assert events[-1]["response"] == DIALECT.write_answer(DIALECT.read_answer(whole), context(), TOKENS)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert re.findall(rb"event: (\S+)\n", written) == [event["type"].encode() for event in events]
    for event in events:
        check(event, ResponseStreamEvent)
    reader = DIALECT.new_stream_reader()
    again = gathered(one for event in events for one in reader.read(event))
    again.logprobs = with_bytes(again.logprobs) or None
    assert again == DIALECT.read_answer(events[-1]["response"])


def client_of(body: bytes, content_type: str) -> openai.OpenAI:
    def respond(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": content_type}, content=body)

    transport = httpx2.MockTransport(respond)
    return openai.OpenAI(api_key="k", base_url="http://test/v1", http_client=httpx2.Client(transport=transport))


@pytest.mark.parametrize("name", RECORDED)
def test_sdk_accumulates_the_stream_to_the_same_object_as_the_whole_answer(name: str) -> None:
    whole, frames = RECORDED[name]
    body = orjson.dumps(DIALECT.write_answer(DIALECT.read_answer(whole), context(), TOKENS))
    parsed = client_of(body, "application/json").responses.parse(model="acme/fast", input="hi")
    stream = written_stream(streamed_events(frames))
    with client_of(stream, "text/event-stream").responses.stream(model="acme/fast", input="hi") as events:
        last = list(events)[-1]
    assert last.type in ("response.completed", "response.incomplete")
    assert without_parsed(last.response.to_dict()) == without_parsed(parsed.to_dict())
    assert parsed.output_text == "".join(
        part.text for part in DIALECT.read_answer(whole).parts if isinstance(part, Text)
    )


def without_parsed(value: Any) -> Any:
    """The SDK parses only complete streams, and without a format it says null."""
    if isinstance(value, dict):
        return {name: without_parsed(inner) for name, inner in value.items() if not name.startswith("parsed")}
    return [without_parsed(inner) for inner in value] if isinstance(value, list) else value
