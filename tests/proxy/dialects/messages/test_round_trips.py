"""Messages, read into the middle and written again, are what they were; what is written has the vendor's form."""

import contextlib
import copy
import string
from base64 import b64encode
from dataclasses import replace
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.messages.dialect import DIALECT
from proxy.dialects.messages.request_reader import effort_of_budget
from proxy.dialects.middle.answer import DetailsSeen
from proxy.dialects.middle.dialect import AnswerContext
from proxy.dialects.middle.request import ReasoningSettings, Request, Sampling
from proxy.dialects.usage.meters import UsageMeter
from proxy.errors import UntranslatableError
from tests.fakes.seals import seals_of
from tests.proxy.dialects.messages.recorded import frames_of
from tests.proxy.dialects.messages.sdk import accumulated, check_events, check_request, parse_message, payloads

Json = dict[str, Any]
MODEL = "claude-x"

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=9)
NAME = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=12)
LEAF = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT
OBJECT = st.dictionaries(NAME, st.recursive(LEAF, lambda inner: st.lists(inner, max_size=2), max_leaves=4), max_size=3)
CACHE = st.sampled_from([{"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}])
BASE64 = st.binary(max_size=9).map(lambda data: b64encode(data).decode())


def record(required: dict[str, st.SearchStrategy[Any]], **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries(required, optional=optional)


def kind(name: str) -> st.SearchStrategy[str]:
    return st.just(name)


TEXTS = record({"type": kind("text"), "text": TEXT}, cache_control=CACHE)
IMAGES = record(
    {
        "type": kind("image"),
        "source": record({"type": kind("url"), "url": TEXT})
        | record({"type": kind("base64"), "media_type": st.sampled_from(["image/png", "image/webp"]), "data": BASE64}),
    },
    cache_control=CACHE,
)
DOCUMENTS = record(
    {
        "type": kind("document"),
        "source": record({"type": kind("url"), "url": TEXT})
        | record({"type": kind("base64"), "media_type": kind("application/pdf"), "data": BASE64})
        | record({"type": kind("text"), "media_type": kind("text/plain"), "data": TEXT}),
    },
    title=TEXT,
    context=TEXT,
    cache_control=CACHE,
)
MEDIA = TEXTS | IMAGES | DOCUMENTS


def shortest(blocks: list[Json]) -> Any:
    """The content as the writer has it: text, where it is one text alone."""
    return blocks[0]["text"] if len(blocks) == 1 and blocks[0].keys() == {"type", "text"} else blocks


def content(blocks: st.SearchStrategy[Json]) -> st.SearchStrategy[Any]:
    return st.lists(blocks, min_size=1, max_size=3).map(shortest)


THINKING = record({"type": kind("thinking"), "thinking": TEXT, "signature": TEXT})
REDACTED = record({"type": kind("redacted_thinking"), "data": TEXT})
TOOLS = st.lists(
    record(
        {"name": NAME, "input_schema": OBJECT.map(lambda some: {"type": "object", "properties": some})},
        description=TEXT,
        strict=st.booleans(),
        cache_control=CACHE,
    ),
    min_size=1,
    max_size=2,
)


@st.composite
def exchange(draw: st.DrawFn, number: int) -> list[Json]:
    """A user's message, and an answer with thinking, text and calls, and the results of the calls."""
    turns: list[Json] = [{"role": "user", "content": draw(content(MEDIA))}]
    if draw(st.booleans()):
        turns.append({"role": "system", "content": draw(content(TEXTS))})
    blocks = draw(st.lists(THINKING | REDACTED | TEXTS, max_size=3))
    ids = [f"toolu_{number}_{n}" for n in range(draw(st.integers(0, 2)))]
    for name in ids:
        blocks.append({"type": "tool_use", "id": name, "name": draw(NAME), "input": draw(OBJECT)})
    turns.append({"role": "assistant", "content": shortest(blocks or [{"type": "text", "text": "-"}])})
    if ids:
        turns.append({"role": "user", "content": [draw(result(name)) for name in ids]})
        turns.append({"role": "assistant", "content": draw(TEXT)})
    return turns


def result(name: str) -> st.SearchStrategy[Json]:
    return record(
        {"type": kind("tool_result"), "tool_use_id": st.just(name)},
        content=content(MEDIA),
        is_error=st.just(True),
        cache_control=CACHE,
    )


SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "system": content(TEXTS),
    "stream": st.just(True),
    "temperature": st.sampled_from([0, 0.5, 1]),
    "top_p": st.sampled_from([0.1, 1]),
    "top_k": st.integers(1, 500),
    "stop_sequences": st.lists(TEXT, min_size=1, max_size=3),
    "metadata": record({"user_id": TEXT}),
    "cache_control": CACHE,
    "thinking": record({"type": kind("adaptive")}, display=st.sampled_from(["summarized", "omitted"]))
    | record({"type": kind("enabled"), "budget_tokens": st.integers(1024, 64000)}),
    "output_config": record(
        {"format": record({"type": kind("json_schema"), "schema": OBJECT})},
        effort=st.sampled_from(["low", "medium", "high", "xhigh", "max"]),
    ),
}
CHOICES = (
    record({"type": st.sampled_from(["auto", "any"])}, disable_parallel_tool_use=st.just(True))
    | record({"type": kind("tool"), "name": NAME}, disable_parallel_tool_use=st.just(True))
    | record({"type": kind("none")})
)


@st.composite
def requests(draw: st.DrawFn) -> Json:
    messages = [turn for number in range(draw(st.integers(0, 2))) for turn in draw(exchange(number))]
    messages.append({"role": "user", "content": draw(content(MEDIA))})
    body: Json = {"model": MODEL, "max_tokens": draw(st.integers(1, 10**6)), "messages": messages}
    body |= draw(st.fixed_dictionaries({}, optional=SETTINGS))
    if draw(st.booleans()):
        body["tools"] = draw(TOOLS)
        if draw(st.booleans()):
            body["tool_choice"] = draw(CHOICES)
    if body.get("tool_choice", {}).get("type") in ("any", "tool"):
        body.pop("thinking", None)
    if body.get("thinking", {}).get("type") in ("adaptive", "enabled"):  # the vendor takes no other values beside it
        body |= {name: 1 for name in ("temperature", "top_p") if name in body}
    budget = body.get("thinking", {}).get("budget_tokens")
    if budget and body.get("output_config", {}).get("effort") == effort_of_budget(budget):
        del body["output_config"]["effort"]
    return body


@given(requests())
def test_request_is_kept(body: Json) -> None:
    given_body = copy.deepcopy(body)
    check_request(body)
    request = DIALECT.read_request(body)
    assert DIALECT.write_request(request, MODEL, "VENDOR_A") == given_body
    assert body == given_body
    assert not request.reasoning_off


BLOCKS = st.lists(
    record({"type": kind("text"), "text": TEXT})
    | THINKING
    | record({"type": kind("thinking"), "thinking": TEXT, "signature": st.just("")})
    | REDACTED
    | record({"type": kind("tool_use"), "id": NAME, "name": NAME, "input": OBJECT}),
    max_size=5,
)


@st.composite
def answers(draw: st.DrawFn) -> Json:
    content = draw(BLOCKS)
    calls = any(block["type"] == "tool_use" for block in content)
    reasons = ["refusal", "pause_turn"] + (["tool_use"] if calls else ["end_turn", "max_tokens"])
    cache_writes = draw(st.integers(0, 99))
    cached = draw(st.integers(0, 99))
    usage: Json = {
        "input_tokens": draw(st.integers(0, 99)),
        "cache_creation_input_tokens": cache_writes,
        "cache_read_input_tokens": cached,
        "output_tokens": draw(st.integers(0, 99)),
    }
    return {
        "id": f"msg_{draw(NAME)}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": content,
        "stop_reason": draw(st.sampled_from(reasons)),
        "stop_sequence": None,
        "usage": usage,
    }


def metered(body: Json) -> UsageMeter:
    meter = DIALECT.new_body_meter(10**9)
    meter.observe(body)
    return meter


CONTEXT = AnswerContext(
    MODEL, Request([], sampling=Sampling(), reasoning=ReasoningSettings(enabled=True)), 0, seals_of()
)


@given(answers())
def test_answer_is_kept(body: Json) -> None:
    parse_message(body)
    meter = metered(body)
    answer = replace(DIALECT.read_answer(body), details=meter.details)
    assert DIALECT.write_answer(answer, CONTEXT, meter.tokens) == body


@given(answers())
def test_streamed_answer_is_kept(body: Json) -> None:
    reader = DIALECT.new_stream_reader()
    writer = DIALECT.new_stream_writer(CONTEXT)
    stream = b""
    for frame in frames_of(body):
        stream += writer.write(reader.read(orjson.loads(frame.split(b"\ndata: ", 1)[1])))
    meter = metered(body)
    stream += writer.write([DetailsSeen(meter.details)]) + writer.closing(meter.tokens)
    check_events(payloads(stream))
    assert accumulated(stream).model_dump(exclude_none=True) == parse_message(body).model_dump(exclude_none=True)


ANYTHING = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAME, inner, max_size=2))


def altered(value: Any, other: Any, data: st.DataObject) -> Any:
    """A copy of `value` with `other` in one place."""
    copied = copy.deepcopy(value)
    holder, at = data.draw(st.sampled_from(places(copied)))
    holder[at] = other
    return copied


def places(value: Any) -> list[tuple[Any, Any]]:
    """Each list or object within `value`, with each of its indexes or names."""
    inner = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    return [(value, at) for at, _ in inner] + [place for _, child in inner for place in places(child)]


@given(requests(), ANYTHING, st.data())
def test_malformed_request_is_refused_or_read(body: Json, other: Any, data: st.DataObject) -> None:
    body = altered(body, other, data)
    with contextlib.suppress(UntranslatableError):
        DIALECT.write_request(DIALECT.read_request(body), MODEL, "VENDOR_A")


@given(answers(), ANYTHING, st.data())
def test_malformed_answer_is_read(body: Json, other: Any, data: st.DataObject) -> None:
    parse_message(DIALECT.write_answer(DIALECT.read_answer(altered(body, other, data)), CONTEXT, None))


@given(answers(), ANYTHING, st.data())
def test_malformed_stream_is_read(body: Json, other: Any, data: st.DataObject) -> None:
    story = [orjson.loads(frame.split(b"\ndata: ", 1)[1]) for frame in frames_of(body)]
    reader = DIALECT.new_stream_reader()
    writer = DIALECT.new_stream_writer(CONTEXT)
    stream = b""
    for event in altered(story, other, data):
        if isinstance(event, dict):
            stream += writer.write(reader.read(event))
    check_events(payload for payload in payloads(stream) if payload["type"] != "error")
