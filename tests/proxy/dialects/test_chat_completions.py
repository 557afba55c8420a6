"""Chat Completions and its siblings with a target of the same dialect: bytes pass unchanged, usage is metered."""

from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policy.billing import Tokens
from policy.endpoints import Target
from proxy.dialects import body_readers
from proxy.dialects import finish as finish_module
from proxy.dialects.registry import Dialects
from proxy.dialects.target_request import target_body
from proxy.dialects.usage.meters import OpenAiMeter
from proxy.errors import UntranslatableError
from tests.fakes.seals import SEAL_KEYS
from tests.proxy.dialects.samples import (
    CHAT,
    CUTS,
    JSON,
    PLATFORM,
    SLUG,
    SSE,
    VENDOR_B,
    answer_reader,
    build_request,
    cut,
    frames,
    payloads,
    read,
    received,
)

HELLO: dict[str, Any] = {"model": SLUG, "messages": [{"role": "user", "content": "hi"}]}
STREAMED = HELLO | {"stream": True}
STREAMED_WITH_USAGE = STREAMED | {"stream_options": {"include_usage": True}}
USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13, "prompt_tokens_details": {"cached_tokens": 4}}


def chunk(delta: str | None, **more: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": {"content": delta}, "finish_reason": None}]
    return {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "gpt-x-2026",
        "choices": choices,
    } | more


def as_slug(payload: dict[str, Any]) -> dict[str, Any]:
    return payload | {"model": SLUG}


# --- asking -------------------------------------------------------------------------------------------------------


def test_request_changes_only_the_model() -> None:
    raw = b'{ "temperature": 1.0,\n "model":"acme/fast" , "messages":[]}'
    call = build_request(received(raw), VENDOR_B, "sk-1")
    assert call.body == raw.replace(b"acme/fast", b"gpt-x")
    assert call.headers == {"content-type": "application/json", "authorization": "Bearer sk-1"}
    assert call.url_at("https://api.example.com") == "https://api.example.com/v1/chat/completions"


def test_platform_target_without_model_name_gets_the_slug_and_no_credential() -> None:
    call = build_request(received(HELLO), PLATFORM, None)
    assert call.body == orjson.dumps(HELLO)
    assert call.headers == {"content-type": "application/json"}


@pytest.mark.parametrize("base", ["https://h/v1", "https://h/v1/", "https://h", "https://h/"])
def test_version_in_the_base_url_is_not_doubled(base: str) -> None:
    assert build_request(received(HELLO), VENDOR_B, "k").url_at(base) == "https://h/v1/chat/completions"


@pytest.mark.parametrize(
    "options",
    [{}, {"stream_options": None}, {"stream_options": {}}, {"stream_options": {"include_usage": False, "x": 1}}],
)
def test_usage_is_requested_when_the_caller_did_not(options: dict[str, Any]) -> None:
    body = orjson.loads(bytes(build_request(received(STREAMED | options), VENDOR_B, "k").body))
    assert body == STREAMED | {
        "model": "gpt-x",
        "stream_options": (options.get("stream_options") or {}) | {"include_usage": True},
    }


@pytest.mark.parametrize("body", [HELLO, HELLO | {"stream": False}, STREAMED_WITH_USAGE])
def test_usage_is_not_requested_otherwise(body: dict[str, Any]) -> None:
    assert orjson.loads(bytes(build_request(received(body), VENDOR_B, "k").body)) == body | {"model": "gpt-x"}


@pytest.mark.parametrize(
    "raw",
    [
        orjson.dumps(STREAMED),
        b' \n{ "stream" : true, "model":"acme/chat" , "messages":[{"content":"{\\"a"}]}',
        b'{"stream":true,"model":"acme/chat","messages":[{"model":"x"}]}',
        b'{"stream":true,"mod\\u0065l":"acme/chat","messages":[]}',
        b'{"stream":true,"model":"acme/chat","stream_option\\u0073":null,"messages":[]}',
        orjson.dumps(STREAMED | {"stream_options": {"include_usage": False, "x": 1}}),
        orjson.dumps(STREAMED_WITH_USAGE),
        orjson.dumps(HELLO),
    ],
)
@pytest.mark.parametrize("target", [VENDOR_B, PLATFORM])
def test_body_with_one_edit_is_that_of_the_general_rule(raw: bytes, target: Target) -> None:
    request = received(raw)
    dialects = Dialects(lambda: 0.0, SEAL_KEYS)
    attempt = dialects.first_attempt(request, target)
    body = dialects.build_body(request, target, attempt)
    assert bytes(body) == bytes(target_body(request, target, attempt))


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/responses"])
def test_paths_without_stream_options_get_none(path: str) -> None:
    body = {"model": SLUG, "input": "x", "stream": True}
    call = build_request(received(body, path), VENDOR_B, "k")
    assert orjson.loads(bytes(call.body)) == body | {"model": "gpt-x"}
    assert call.path == path


def test_stream_options_must_be_an_object() -> None:
    with pytest.raises(UntranslatableError, match="stream_options"):
        build_request(received(STREAMED | {"stream_options": 1}), VENDOR_B, "k")


# --- bodies -------------------------------------------------------------------------------------------------------


def test_body_is_held_until_its_end_and_names_the_slug() -> None:
    raw = (
        b'{"id":"c1","model":"gpt-x-2026", "choices":[{"message":{"content":"\\"model\\":1"}}],"usage":%s}'
        % orjson.dumps(USAGE)
    )
    answer = answer_reader(received(HELLO), VENDOR_B, JSON)
    assert answer.feed(raw[:20]) == answer.feed(raw[20:]) == b""
    assert answer.end() == raw.replace(b"gpt-x-2026", SLUG.encode())
    assert answer.reported.tokens == Tokens(input=10, output=3, cached_input=4)


@pytest.mark.parametrize("raw", [b"", b"[1]", b"not json", b'{"model":', b'{"no":"model"}', b"null", b"\xff"])
def test_other_bodies_pass_unchanged(raw: bytes) -> None:
    answer = answer_reader(received(HELLO), VENDOR_B, JSON)
    assert read(answer, [raw]) == raw
    assert answer.reported.tokens is None


def test_other_content_types_pass_except_the_last_read() -> None:
    answer = answer_reader(received(HELLO), VENDOR_B, [("content-type", "audio/mpeg")])
    assert answer.feed(b'{"model":"a",') == b""
    assert answer.feed(b'"error":{}}') == b'{"model":"a",'
    assert answer.end() == b'"error":{}}'
    assert answer.reported.tokens is None


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 0, "completion_tokens": 0}, Tokens(input=0, output=0, cached_input=0)),
        ({"prompt_tokens": 5, "total_tokens": 5}, None),
        ({"completion_tokens": 5, "total_tokens": 5}, None),
        ({"prompt_tokens": None, "completion_tokens": 5}, None),
        ({"prompt_tokens": 4_000_000, "completion_tokens": 4_000_000}, Tokens(input=4_000_000, output=4_000_000)),
        ({"prompt_tokens": 4_000_001, "completion_tokens": 1}, None),
        ({"prompt_tokens": 5, "completion_tokens": -100}, None),
        ({"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": "1"}}, None),
        (
            {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": None},
            Tokens(input=5, output=1, cached_input=0),
        ),
        (
            {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 9}},
            Tokens(input=5, output=1, cached_input=5),
        ),
        (
            {"prompt_tokens": 5, "completion_tokens": 1, "prompt_cache_hit_tokens": 2},
            Tokens(input=5, output=1, cached_input=2),
        ),
        (
            {"input_tokens": 7, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 3}},
            Tokens(input=7, output=2, cached_input=3),
        ),
        ({"prompt_tokens": True, "completion_tokens": 1.5}, None),
        ({"prompt_tokens": -1, "completion_tokens": "3"}, None),
        ({"prompt_tokens": 2**60}, None),
        ({}, None),
        (None, None),
        ([], None),
    ],
)
def test_usage_object_becomes_tokens(usage: Any, tokens: Tokens | None) -> None:
    answer = answer_reader(received(HELLO), VENDOR_B, JSON)
    read(answer, [orjson.dumps({"model": "m", "usage": usage})])
    assert answer.reported.tokens == tokens


@pytest.mark.parametrize(
    "figure", [b"1e3", b"1.0", b"-1", b"9007199254740992", b'"12"', b"true", b"[]", b"99999999999999999999999"]
)
@pytest.mark.parametrize("member", [b"prompt_tokens", b"completion_tokens"])
def test_invalid_figure_withdraws_the_report(member: bytes, figure: bytes) -> None:
    """Earlier valid reports are withdrawn too: only the last report counts."""
    frames = [
        b'data: {"model":"m","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":0}}\n\n',
        b'data: {"model":"m","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"%b":%b}}\n\n'
        % (member, figure),
    ]
    reports = []
    answer = answer_reader(received(STREAMED), VENDOR_B, SSE)
    for frame in frames:
        answer.feed(frame)
        reports.append(answer.reported.tokens)
    assert reports == [Tokens(input=3, output=0), None]
    assert answer.reported.rejected.startswith(member.decode())
    assert figure.decode() not in answer.reported.rejected.partition("between")[0]


def test_largest_valid_figure_is_a_setting() -> None:
    answer = answer_reader(received(HELLO), VENDOR_B, JSON, 100)
    read(answer, [orjson.dumps({"model": "m", "usage": {"prompt_tokens": 3, "completion_tokens": 101}})])
    assert (answer.reported.tokens, answer.reported.rejected) == (None, "completion_tokens is not between 0 and 100")


@pytest.mark.parametrize("places", [[], [1], [2], [3], [7], list(range(500))])
def test_stream_with_a_byte_order_mark_is_metered_and_keeps_it(places: list[int]) -> None:
    """The mark may even precede the frame that holds the usage."""
    mark = b"\xef\xbb\xbf"
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    chunk = {"model": "m", "choices": [{"delta": {"content": "a"}}], "usage": usage}
    request = received(STREAMED | {"stream_options": {"include_usage": True}})
    answer = answer_reader(request, VENDOR_B, SSE)
    rewritten = read(answer, cut(mark + frames(chunk), places))
    assert rewritten == mark + frames(chunk | {"model": SLUG})
    assert answer.reported.tokens == Tokens(input=3, output=2)


def test_embeddings_report_only_their_input() -> None:
    answer = answer_reader(received(HELLO, "/v1/embeddings"), VENDOR_B, JSON)
    read(answer, [b'{"model":"m","data":[],"usage":{"prompt_tokens":8,"total_tokens":8}}'])
    assert answer.reported.tokens == Tokens(input=8, output=0)


@pytest.mark.parametrize("model_at", ["head", "tail"])
def test_body_too_large_to_hold_passes_with_slug_and_tokens(model_at: str) -> None:
    model, data = b'"model":"gpt-x-2026"', b'"data":[{"model":"mine","e":"%s"}]' % (b"x" * 500_000)
    raw = (
        b"{" + b",".join([model, data] if model_at == "head" else [data, model]) + b',"usage":%s}' % orjson.dumps(USAGE)
    )
    answer = body_readers.BodyReader(SLUG, OpenAiMeter(), limit=100_000)
    out = b""
    backlog = 0
    for at in range(0, len(raw), 10_000):
        out += answer.feed(raw[at : at + 10_000])
        backlog = max(backlog, at + 10_000 - len(out))
    assert backlog < 250_000
    assert out + answer.end() == raw.replace(b"gpt-x-2026", SLUG.encode())
    assert answer.reported.tokens == Tokens(input=10, output=3, cached_input=4)


# --- streams ------------------------------------------------------------------------------------------------------


def test_requested_usage_does_not_show_in_the_stream() -> None:
    answer = answer_reader(received(STREAMED), VENDOR_B, SSE)
    stream = frames(chunk("a", usage=None), chunk("b", usage=None), chunk(None, usage=USAGE))
    assert read(answer, [stream]) == frames(as_slug(chunk("a")), as_slug(chunk("b")))
    assert answer.reported.tokens == Tokens(input=10, output=3, cached_input=4)


def test_stream_keeps_usage_that_the_caller_requested() -> None:
    answer = answer_reader(received(STREAMED_WITH_USAGE), VENDOR_B, SSE)
    chunks = [chunk("a", usage=None), chunk(None, usage=USAGE)]
    assert read(answer, [frames(*chunks)]) == frames(*map(as_slug, chunks))
    assert answer.reported.tokens == Tokens(input=10, output=3, cached_input=4)


def test_frames_pass_at_once_and_the_last_one_waits() -> None:
    answer = answer_reader(received(STREAMED), VENDOR_B, SSE)
    assert answer.feed(frames(chunk("a"), has_done=False)) == frames(as_slug(chunk("a")), has_done=False)
    assert answer.feed(b": keep-alive\n") == b": keep-alive\n"
    assert answer.feed(frames(chunk(None, usage=USAGE))) == b""
    assert answer.reported.tokens == Tokens(input=10, output=3, cached_input=4)
    assert answer.feed(b"\n: more\n\n") == b""
    assert answer.end() == b"data: [DONE]\n\n"


@pytest.mark.parametrize("last", [b"data: [DONE]", b"data: [DONE]\n", b"data:[DONE]\r\n\r\n", b""])
def test_every_form_of_final_frame_waits(last: bytes) -> None:
    answer = answer_reader(received(STREAMED), VENDOR_B, SSE)
    assert (
        read(answer, [frames(chunk("a"), has_done=False), last]) == frames(as_slug(chunk("a")), has_done=False) + last
    )


def test_usage_in_an_unfinished_last_frame_counts() -> None:
    answer = answer_reader(received(STREAMED_WITH_USAGE), VENDOR_B, SSE)
    read(answer, [frames(chunk(None, usage=USAGE), has_done=False).rstrip()])
    assert answer.reported.tokens == Tokens(input=10, output=3, cached_input=4)


def test_last_report_counts_and_usage_beside_content_stays() -> None:
    early = USAGE | {"completion_tokens": 9}
    late = USAGE | {"completion_tokens": 2}
    chunks = [chunk("a", usage=early), chunk("b", usage=late)]
    answer = answer_reader(received(STREAMED), VENDOR_B, SSE)
    assert read(answer, [frames(*chunks)]) == frames(*map(as_slug, chunks))
    assert answer.reported.tokens == Tokens(input=10, output=2, cached_input=4)


@pytest.mark.parametrize(
    ("stream", "passed"),
    [
        (b'data: {"model":"m","usage": null , "choices":[]}\n\n', b'data: {"model":"acme/fast" , "choices":[]}\n\n'),
        (b'data: {"usage":null}\n\n', b"data: {}\n\n"),
        (b'data: {"usage":null,"model":"m"}\r\n\r\n', b'data: {"model":"acme/fast"}\r\n\r\n'),
        (b'data:{"model" : "m" , "usage"\t:null }\n\n', b'data:{"model" : "acme/fast"  }\n\n'),
        (
            b'data: {"choices":[{"model":"x"}],"model":"m"}\n\n',
            b'data: {"choices":[{"model":"x"}],"model":"acme/fast"}\n\n',
        ),
        (b'data: {"a":{"model":"x"}}\n\n', b'data: {"a":{"model":"x"}}\n\n'),
        (b'data: {"model":null}\n\n', b'data: {"model":"acme/fast"}\n\n'),
        (b'data: {"model":"a\\"b","x":1}\n\n', b'data: {"model":"acme/fast","x":1}\n\n'),
        (b'event: x\nid: 1\ndata: {"model":"m"}\n\n', b'event: x\nid: 1\ndata: {"model":"acme/fast"}\n\n'),
        (b'data: {"model":\ndata: "m"}\n\n', b'data: {"model": "acme/fast"}\n\n'),
        (
            b'data: {"d":"\\"model\\":\\"m\\", \\"usage\\":null}"}\n\n',
            b'data: {"d":"\\"model\\":\\"m\\", \\"usage\\":null}"}\n\n',
        ),
        (b'data: {"error":{"message":"model"}}\n\n', b'data: {"error":{"message":"model"}}\n\n'),
        (b'data: "model" is no JSON\n\n', b'data: "model" is no JSON\n\n'),
        (b'data: ["model"]\n\n', b'data: ["model"]\n\n'),
        (b"retry: 10\n\n", b"retry: 10\n\n"),
    ],
)
def test_unusual_frames_pass(stream: bytes, passed: bytes) -> None:
    assert read(answer_reader(received(STREAMED), VENDOR_B, SSE), [stream]) == passed


def test_frame_with_a_second_model_member_is_rewritten_in_both() -> None:
    ordinary = frames(chunk("a"), has_done=False)
    odd = ordinary.replace(b"}\n\n", b',"model":"gpt-x-2026"}\n\n')
    answer = answer_reader(received(STREAMED), VENDOR_B, SSE)
    out = read(answer, [ordinary, odd, ordinary])
    assert b"gpt-x" not in out
    assert payloads(out) == [as_slug(chunk("a"))] * 3


@given(CUTS)
def test_nothing_after_the_last_frame_belongs_to_the_answer(places: list[int]) -> None:
    answer = answer_reader(received(STREAMED), VENDOR_B, SSE)
    stream = frames(chunk("a")) + frames(chunk("late")) + b"junk"
    assert read(answer, cut(stream, places)) == frames(as_slug(chunk("a")))
    assert answer.ended


CHUNKS = st.builds(
    chunk,
    st.sampled_from(["", "hello", '"usage":null}', '"model":"x"', "data: [DONE]", "é\n\n", None]),
    usage=st.sampled_from([None, USAGE, {"prompt_tokens": 1, "completion_tokens": 2}]),
)
PLAIN = st.builds(chunk, st.text(max_size=5))
ODD = st.sampled_from([b": ping\n\n", b":\n", b"\n", b"event: x\n\n", b'data: {"choices":[],"model":"m"}\r\n\r\n'])


@given(
    st.lists(CHUNKS | PLAIN | ODD, max_size=8), CUTS, st.sampled_from([STREAMED, STREAMED_WITH_USAGE]), st.booleans()
)
def test_segmentation_changes_neither_output_nor_tokens(
    values: list[Any], places: list[int], body: dict[str, Any], has_done: bool
) -> None:
    stream = frames(*values, has_done=has_done)
    unsplit, pieces = (answer_reader(received(body), VENDOR_B, SSE) for _ in range(2))
    out = read(unsplit, [stream])
    assert read(pieces, cut(stream, places)) == out
    assert pieces.reported.tokens == unsplit.reported.tokens
    inputs = [p for p in payloads(stream) if p != "[DONE]"]
    dropped = "stream_options" not in body
    expected = [
        {k: v for k, v in as_slug(p).items() if not (dropped and k == "usage" and v is None)}
        for p in inputs
        if not (dropped and p["choices"] == [] and p.get("usage"))
    ]
    assert payloads(out) == expected + ["[DONE]"] * has_done


@given(st.lists(st.binary(max_size=30), max_size=20), CUTS)
def test_hostile_bytes_raise_nothing(scraps: list[bytes], places: list[int]) -> None:
    stream = b"\n".join([b"data: ", *scraps, b'data: {"model":"m","usage":{"prompt_tokens":1}}', b""])
    unsplit, pieces = (answer_reader(received(STREAMED), VENDOR_B, SSE) for _ in range(2))
    assert read(unsplit, [stream]) == read(pieces, cut(stream, places))


@pytest.mark.parametrize("step", [1 << 20, 40_000])
def test_oversized_frame_is_not_held_and_still_counts(step: int) -> None:
    big = chunk("x" * 5_000_000, usage=USAGE)
    stream = frames(big, chunk("b"))
    answer = answer_reader(received(STREAMED_WITH_USAGE), VENDOR_B, SSE)
    out = b""
    most = 0
    for at in range(0, len(stream), step):
        out += answer.feed(stream[at : at + step])
        most = max(most, min(len(stream), at + step) - len(out))
    assert most < step + (2 << 20)
    assert out + answer.end() == frames(as_slug(big), as_slug(chunk("b")))
    assert answer.reported.tokens == Tokens(input=10, output=3, cached_input=4)


def test_held_frames_have_a_bound() -> None:
    answer = answer_reader(received(STREAMED), VENDOR_B, SSE)
    finish = frames(
        chunk("x" * 9_994) | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, has_done=False
    )
    out = b"".join(answer.feed(finish + b": keep-alive %0*d\n\n" % (9_000, 1)) for _ in range(1000))
    assert len(out) > 8_000_000 - finish_module.MAX_HELD_BYTES - (2 << 20)


# --- the siblings -------------------------------------------------------------------------------------------------


def test_completions_stream_like_chat() -> None:
    body = {"model": SLUG, "prompt": "x", "stream": True}
    answer = answer_reader(received(body, "/v1/completions"), VENDOR_B, SSE)
    text = {"id": "c", "object": "text_completion", "model": "m", "choices": [{"text": "a", "index": 0}]}
    assert read(answer, [frames(text, text | {"choices": [], "usage": USAGE})]) == frames(as_slug(text))
    assert answer.reported.tokens == Tokens(input=10, output=3, cached_input=4)


def test_body_of_too_many_numbers_is_not_parsed_and_still_counts() -> None:
    vectors = ",".join(["[" + ",".join(["0.25"] * 100_000) + "]"] * 8)
    raw = f'{{"object":"list","data":[{vectors}],"model":"m","usage":{{"prompt_tokens":7,"total_tokens":7}}}}'.encode()
    answer = answer_reader(received({"model": SLUG, "input": "x"}, "/v1/embeddings"), VENDOR_B, JSON)
    assert answer.feed(raw[:1000]) + answer.feed(raw[1000:]) == b""
    assert answer.end() == raw.replace(b'"model":"m"', b'"model":"' + SLUG.encode() + b'"')
    assert answer.reported.tokens == Tokens(input=7, output=0)


def test_embeddings_usage_has_no_output() -> None:
    body = {"model": SLUG, "input": "x"}
    answer = answer_reader(received(body, "/v1/embeddings"), VENDOR_B, JSON)
    vendor_body = {
        "object": "list",
        "data": [{"embedding": [0.5]}],
        "model": "m",
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }
    assert orjson.loads(read(answer, [orjson.dumps(vendor_body)])) == as_slug(vendor_body)
    assert answer.reported.tokens == Tokens(input=2, output=0, cached_input=0)


def test_every_chat_provider_is_read_alike() -> None:
    custom = Target("VENDOR_B_COMPATIBLE", secret_id="s", target_model="t", base_url="https://h/api/v1")
    call = build_request(received(HELLO, CHAT), custom, "k")
    assert call.url_at(custom.base_url or "") == "https://h/api/v1/chat/completions"


DELTA = b'data: {"id":"c1","model":"gpt-x-2026","choices":[{"delta":{"content":"a"}}]'
OPENING = DELTA[:-5]
ENDING = DELTA[-4:] + b"}\n\n"
TEXTS = [  # between them
    b"more",
    b"",
    b'a \\"quoted\\" word',
    b"a backslash \\\\",
    b'a"}}],"usage":{"prompt_tokens":7,"completion_tokens":5},"z":[{"z":{"z":"b',
    b'a"}}],"error":{"message":"m"},"z":[{"z":{"z":"b',
    b'a"}}],"model":"again","z":[{"z":{"z":"b',
    b'a"}}]}\n\ndata: [DONE]\n\ndata: {"choices":[{"delta":{"content":"b',
    b"a\n\ndata: [DONE]\n\nb",
    b"a\ndata: b",
    b"a\r\rdata: [DONE]\r\rb",
    b"a\rb",
    *(b"error", b"usage", b"model", b"[DONE]"),
]
KINDS_OF_FRAME = [
    *(OPENING + text + ENDING for text in TEXTS),
    OPENING + ENDING[1:],  # of a text that ends where it should begin
    DELTA + b"}\n\n",
    DELTA + b',"usage":null}\n\n',
    DELTA + b',"usage": null }\n\n',
    DELTA + b',"usage":{"prompt_tokens":7,"completion_tokens":5}}\n\n',
    DELTA + b',"usage":{"prompt_tokens":8,"completion_tokens":6},"usage":null}\n\n',
    DELTA + b',"x":{"model":"y","usage":null}}\n\n',
    DELTA + b',"model":"again"}\n\n',
    DELTA + b',"error":{"message":"m"}}\n\n',
    DELTA + b"}\r\r",
    DELTA + b"}\r\n\r\n",
    DELTA + b"}\n",
    DELTA,
    b'data: {"usage":{"prompt_tokens":9,"completion_tokens":1},"model":"gpt-x-2026","choices":[],"usage":null}\n\n',
    b'data: {"usage":null,"model":"gpt-x-2026","choices":[]}\n\n',
    b'data: {"usage":{"prompt_tokens":3,"completion_tokens":1},"model":"gpt-x-2026","choices":[]}\n\n',
    b'data: {"choices":[]}\n\n',
    b"data: [DONE]\n\n",
    b": ping\n\n",
    b"\n",
]


@given(st.lists(st.sampled_from(KINDS_OF_FRAME), max_size=8), st.sets(st.integers(0, 8)), st.booleans())
@example([OPENING + text + ENDING for text in TEXTS], set(), True)
@example([OPENING + ENDING[1:], OPENING, ENDING], set(), True)
@example([DELTA + b',"usage":null}\n\n', DELTA + b"}\n\n"], set(), False)
@example([DELTA + b"}\r\r", b"data: [DONE]\n\n"], {1}, False)
@example([DELTA + b',"error":{"message":"m"}}\n\n'], set(), False)
@example([DELTA + b',"usage":{"prompt_tokens":7,"completion_tokens":5}}\n\n'], set(), True)
@example([DELTA + b"}\n\n", b"data: [DONE]\n\n"], {1}, False)
@example([b"data: [DONE]\n\n", DELTA + b"}\n\n"], set(), False)
@example(
    [
        b'data: {"usage":null,"model":"gpt-x-2026","choices":[],"usage":null}\n\n',
        b'data: {"usage":null,"model":"gpt-x-2026","choices":[]}\n\n',
    ],
    set(),
    False,
)
@example(
    [
        b'data: {"id":"c1","model":"gpt-x-2026",',
        b'"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2}}\n\n',
    ],
    set(),
    True,
)
def test_frame_that_arrives_alone_is_read_like_any_other(
    frames: list[bytes], joined: set[int], asks_usage: bool
) -> None:
    """Whole frames take a fast path that split frames do not take; single bytes never take it."""
    at_once = [b""]
    for number, frame in enumerate(frames):
        if number in joined:
            at_once[-1] += frame
        else:
            at_once.append(frame)
    request = received(STREAMED_WITH_USAGE if asks_usage else STREAMED)
    plain = [DELTA + (b"}\n\n" if asks_usage else b',"usage":null}\n\n')] * 2
    results = []
    for pieces in (at_once, cut(b"".join(frames), range(10_000))):
        one = answer_reader(request, VENDOR_B, SSE)
        passed = b"".join(one.feed(piece) for piece in [*plain, *pieces])
        results.append((passed, one.end(), one.reported.tokens, one.failed))
    assert results[0] == results[1]


def test_learned_pattern_rewrites_deltas_as_the_parser_does() -> None:
    request = received(STREAMED)
    one = answer_reader(request, VENDOR_B, SSE)
    rewritten = [
        one.feed(OPENING + text + DELTA[-4:] + b',"usage":null}\n\n') for text in (b"a", b"b", b"", b"c c", b"\\n")
    ]
    as_slugs = OPENING.replace(b"gpt-x-2026", b"acme/fast")
    several = (OPENING + b"d" + DELTA[-4:] + b',"usage":null}\n\n') * 3
    assert one.feed(several) == (as_slugs + b"d" + ENDING) * 3
    assert rewritten == [as_slugs + text + ENDING for text in (b"a", b"b", b"", b"c c", b"\\n")]
