"""A compatible server is asked in the caller's dialect, and in another one where it lacks the path."""

import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from policy.billing import Tokens
from policy.endpoints import Target
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from proxy.dialects import registry
from proxy.dialects.messages.dialect import DIALECT
from proxy.dialects.registry import Dialects
from proxy.dialects.spoken_dialects import REMEMBERED_S, SpokenDialects, dialects_of
from proxy.errors import UpstreamCutError
from proxy.records.messages import Received
from proxy.stages.dispatch import MANY_CONTAINERS
from tests.fakes.directory import SLUG, platform
from tests.fakes.path import PathRig
from tests.fakes.seals import SEAL_KEYS
from tests.fakes.upstream_client import FakeAnswer, answer
from tests.fakes.wire import FakeIncoming, FakeOutgoing, asking
from tests.proxy.dialects.samples import received

MESSAGES = {"model": SLUG, "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "their-model",
    "content": [{"type": "text", "text": "hello"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 2},
}
COMPLETION = {
    "id": "chatcmpl-1",
    "model": "their-model",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "model": "their-model",
    "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]}],
    "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
}
NO_PATH = {"detail": "Not Found"}
UNKNOWN_MODEL = {"error": {"message": "no such model", "code": "model_not_found", "type": "invalid_request_error"}}
CHAT_PATH = "/v1/chat/completions"
MESSAGES_PATH = "/v1/messages"
RESPONSES_PATH = "/v1/responses"


@pytest.fixture
def rig() -> PathRig:
    rig = PathRig()
    rig.directory.add_slug(SLUG, compatible())
    return rig


def compatible(model: str = "their-model") -> Target:
    return Target("VENDOR_B_COMPATIBLE", secret_id="s1", target_model=model, base_url="https://host.test/v1")


def said(body: Any, status: int = 200) -> FakeAnswer:
    return answer(json.dumps(body).encode(), status)


async def send_messages(rig: PathRig, **more: Any) -> FakeOutgoing:
    return await rig.serve(FakeIncoming(MESSAGES_PATH).saying(MESSAGES | more))


def paths(rig: PathRig) -> list[str]:
    return [call.url.removeprefix("https://host.test") for call in rig.upstream.calls]


async def test_server_that_speaks_the_callers_dialect_is_asked_in_it(rig: PathRig) -> None:
    rig.upstream.will(said(MESSAGE))
    outgoing = await send_messages(rig, top_k=3)
    assert outgoing.json == MESSAGE | {"model": SLUG}
    assert paths(rig) == [MESSAGES_PATH]
    headers = rig.upstream.calls[0].headers
    assert headers["authorization"] == f"Bearer {headers['x-api-key']}"


@pytest.mark.parametrize("status", [404, 405])
@pytest.mark.parametrize("body", [json.dumps(NO_PATH).encode(), b"404 page not found", b"", b'{"error": "Not Found"}'])
async def test_server_without_the_path_is_asked_in_chat_completions(rig: PathRig, status: int, body: bytes) -> None:
    rig.directory.limit(Limit(LimitType.REQUEST, Unit.MINUTE, 1))
    rig.upstream.will(answer(body, status), said(COMPLETION))
    outgoing = await send_messages(rig)
    assert outgoing.status == 200
    assert outgoing.json["content"] == [{"type": "text", "text": "hello"}]
    assert paths(rig) == [MESSAGES_PATH, CHAT_PATH]
    assert rig.journal.closed[0].tokens == Tokens(input=3, output=2)
    rig.check_settled()


async def test_server_with_responses_alone_is_found(rig: PathRig) -> None:
    for _ in range(2):
        rig.upstream.will(said(NO_PATH, 404), said(NO_PATH, 404), said(RESPONSE))
    assert (await send_messages(rig)).json["content"] == [{"type": "text", "text": "hello"}]
    rig.upstream.script.popleft()
    assert (await rig.serve(asking())).json["choices"][0]["message"]["content"] == "hello"
    assert paths(rig) == [MESSAGES_PATH, CHAT_PATH, RESPONSES_PATH, CHAT_PATH, RESPONSES_PATH]


async def test_dialect_is_remembered_per_target_and_callers_dialect(rig: PathRig) -> None:
    rig.upstream.will(said(NO_PATH, 404), said(COMPLETION), said(COMPLETION), said(COMPLETION))
    assert [(await send_messages(rig)).status for _ in range(2)] == [200, 200]
    assert (await rig.serve(asking())).status == 200
    rig.directory.add_slug(SLUG, compatible("another"))
    rig.upstream.will(said(MESSAGE))
    await send_messages(rig)
    assert paths(rig) == [MESSAGES_PATH, CHAT_PATH, CHAT_PATH, CHAT_PATH, MESSAGES_PATH]


async def test_what_the_remembered_dialect_cannot_say_is_refused_before_it_counts(rig: PathRig) -> None:
    rig.upstream.will(said(NO_PATH, 404), said(COMPLETION))
    await send_messages(rig)
    outgoing = await send_messages(rig, top_k=3)
    assert (outgoing.status, outgoing.json["error_code"]) == (400, "UNTRANSLATABLE_REQUEST")
    assert len(rig.journal.opened) == 1


async def test_what_cannot_be_translated_is_refused_once_the_path_is_known_to_lack(rig: PathRig) -> None:
    rig.upstream.will(said(NO_PATH, 404))
    outgoing = await send_messages(rig, top_k=3)
    assert (outgoing.status, outgoing.json["error_code"]) == (400, "UNTRANSLATABLE_REQUEST")
    assert "top_k" in outgoing.json["error"]
    rig.check_settled()


async def test_unknown_model_triggers_nothing(rig: PathRig) -> None:
    rig.upstream.will(said(UNKNOWN_MODEL, 404))
    outgoing = await send_messages(rig)
    assert (outgoing.status, outgoing.json) == (404, UNKNOWN_MODEL)
    assert paths(rig) == [MESSAGES_PATH]


async def test_only_a_2xx_is_remembered(rig: PathRig) -> None:
    rig.upstream.will(said(NO_PATH, 404), said({"error": {"message": "busy"}}, 503), said(MESSAGE))
    assert (await send_messages(rig)).status == 503
    assert (await send_messages(rig)).status == 200
    assert paths(rig) == [MESSAGES_PATH, CHAT_PATH, MESSAGES_PATH]


async def test_remembered_dialect_is_forgotten_when_its_path_is_gone(rig: PathRig) -> None:
    rig.upstream.will(said(NO_PATH, 404), said(COMPLETION), said(NO_PATH, 404), said(MESSAGE))
    assert [(await send_messages(rig)).status for _ in range(3)] == [200, 404, 200]
    assert paths(rig) == [MESSAGES_PATH, CHAT_PATH, CHAT_PATH, MESSAGES_PATH]


async def test_server_without_any_path_is_a_404_with_its_text(rig: PathRig) -> None:
    rig.upstream.will(said(NO_PATH, 404), said(NO_PATH, 404), said(NO_PATH, 404))
    outgoing = await send_messages(rig)
    assert outgoing.status == 404
    assert json.loads(outgoing.json["error"]) == NO_PATH
    rig.check_settled()


async def test_embeddings_are_never_translated(rig: PathRig) -> None:
    rig.upstream.will(said(NO_PATH, 404))
    incoming = asking()
    incoming.request_target = "/v1/embeddings"
    assert (await rig.serve(incoming)).status == 404
    assert paths(rig) == ["/v1/embeddings"]


async def test_replica_is_asked_again_and_freed_once(rig: PathRig) -> None:
    rig.directory.add_slug(SLUG, platform())
    rig.directory.deploy("ACTIVE", "http://10.0.0.5:8000")
    rig.upstream.will(said(NO_PATH, 404), said(COMPLETION))
    assert (await send_messages(rig)).status == 200
    assert [call.url for call in rig.upstream.calls] == [
        f"http://10.0.0.5:8000{path}" for path in (MESSAGES_PATH, CHAT_PATH)
    ]
    rig.check_settled()


async def test_all_attempts_share_the_deadline(rig: PathRig) -> None:
    rig.upstream.will(said(NO_PATH, 404), said(COMPLETION))
    await send_messages(rig)
    first, second = rig.upstream.calls
    assert first.deadline == second.deadline > 0


async def test_stream_is_translated_after_a_fallback(rig: PathRig) -> None:
    chunk: dict[str, Any] = {
        "id": "c",
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": "hello"}}],
    }
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    stream = b"".join(b"data: %s\n\n" % json.dumps(each).encode() for each in (chunk, last)) + b"data: [DONE]\n\n"
    rig.upstream.will(said(NO_PATH, 404), answer(stream, headers=(("content-type", "text/event-stream"),)))
    outgoing = await send_messages(rig, stream=True)
    assert b'"text":"hello"' in outgoing.body
    assert b"event: message_stop" in outgoing.body


async def test_long_conversation_is_translated_beside_the_loop(rig: PathRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.directory.add_slug(SLUG, Target("VENDOR_B", secret_id="s1", target_model="m"))
    threads: list[threading.Thread] = []
    read = DIALECT.read_request

    def noted(body: dict[str, Any]) -> Any:
        threads.append(threading.current_thread())
        return read(body)

    monkeypatch.setitem(registry._DIALECTS, "messages", replace(DIALECT, read_request=noted))
    for turns in (3, MANY_CONTAINERS):
        rig.upstream.will(said(COMPLETION))
        text = [{"role": ("user", "assistant")[n % 2], "content": "long " * 10} for n in range(2 * turns + 1)]
        assert (await send_messages(rig, messages=text)).status == 200
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({}, CHAT_PATH),
        ({"thinking": {"type": "adaptive"}}, RESPONSES_PATH),
        ({"output_config": {"effort": "high"}}, RESPONSES_PATH),
        ({"thinking": {"type": "disabled"}}, CHAT_PATH),
        ({"thinking": {"type": "adaptive"}, "stop_sequences": ["END"]}, CHAT_PATH),
    ],
)
async def test_vendor_b_is_asked_for_reasoning_by_responses(rig: PathRig, more: dict[str, Any], path: str) -> None:
    rig.directory.add_slug(SLUG, Target("VENDOR_B", secret_id="s1", target_model="m"))
    rig.upstream.will(said(RESPONSE if path == RESPONSES_PATH else COMPLETION))
    assert (await send_messages(rig, max_tokens=100, **more)).status == 200
    assert rig.upstream.calls[0].url == f"https://vendor-b.test{path}"


async def test_translated_stream_that_breaks_is_billed_what_was_delivered(rig: PathRig) -> None:
    chunk = {"id": "c", "choices": [{"index": 0, "delta": {"content": "hello"}}]}
    pieces = (b"data: %s\n\n" % json.dumps(chunk).encode(), UpstreamCutError("cut"))
    sse = (("content-type", "text/event-stream"),)
    rig.upstream.will(said(NO_PATH, 404), answer(headers=sse, pieces=pieces))
    outgoing = await send_messages(rig, stream=True)
    assert outgoing.aborted
    assert b"message_stop" not in outgoing.body
    [call] = rig.journal.closed
    assert (call.status, call.tokens.output > 0) == (502, True)
    rig.check_settled()


async def test_header_names_what_was_left_out_within_a_bound(rig: PathRig) -> None:
    rig.directory.add_slug(SLUG, Target("VENDOR_A", secret_id="s1", target_model="m"))
    function = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    for searches, ending in (
        (2, "tools.1 (web_search), tools.2 (web_search)"),
        (25, "tools.20 (web_search) and 5 more"),
    ):
        rig.upstream.will(said(MESSAGE))
        body = {"model": SLUG, "input": "hi", "tools": [function, *[{"type": "web_search"}] * searches]}
        outgoing = await rig.serve(FakeIncoming(RESPONSES_PATH).saying(body))
        assert outgoing.status == 200
        assert (outgoing.header("x-tollgate-left-out") or "").endswith(ending)


async def test_header_names_what_the_second_dialect_left_out(rig: PathRig) -> None:
    rig.upstream.will(said(NO_PATH, 404), said(COMPLETION))
    function = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    body = {"model": SLUG, "input": "hi", "tools": [function, {"type": "web_search"}]}
    outgoing = await rig.serve(FakeIncoming(RESPONSES_PATH).saying(body))
    assert paths(rig) == [RESPONSES_PATH, CHAT_PATH]
    assert outgoing.header("x-tollgate-left-out") == "tools.1 (web_search)"


async def test_caller_is_told_that_the_target_does_not_think(rig: PathRig) -> None:
    rig.directory.add_slug(SLUG, Target("VENDOR_A", secret_id="s1", target_model="m"))
    function = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    for choice, notice in (("required", 'off; reason="the tool choice forces a call"'), ("auto", None)):
        rig.upstream.will(said(MESSAGE))
        outgoing = await rig.serve(asking(reasoning_effort="high", tools=[function], tool_choice=choice))
        assert outgoing.status == 200
        assert outgoing.header("x-tollgate-reasoning") == notice


async def test_unknown_reason_for_an_end_is_logged_once_per_word(
    rig: PathRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.directory.add_slug(SLUG, Target("VENDOR_B", secret_id="s1", target_model="m"))
    for word in ("because", "because", "stop", "why"):
        choice = COMPLETION["choices"][0] | {"finish_reason": word}  # type: ignore[index]
        rig.upstream.will(said(COMPLETION | {"choices": [choice]}))
        assert (await send_messages(rig)).json["stop_reason"] == "end_turn"
    rows = [record.getMessage() for record in caplog.records]
    assert [word for row in rows for word in ("because", "stop", "why") if f"'{word}'" in row] == ["because", "why"]


# Which dialects a target speaks.


@pytest.mark.parametrize(
    ("provider", "caller", "expected"),
    [
        ("VENDOR_A", "messages", ("messages",)),
        ("VENDOR_A", "responses", ("messages",)),
        ("VENDOR_B", "responses", ("responses",)),
        ("VENDOR_B", "messages", ("chat_completions", "responses")),
        ("VENDOR_C", "responses", ("chat_completions",)),
        ("PLATFORM", "messages", ("messages", "chat_completions", "responses")),
        ("PLATFORM_MODEL_API", "responses", ("responses", "chat_completions")),
        ("VENDOR_B_COMPATIBLE", "chat_completions", ("chat_completions", "responses")),
        ("LATER", "messages", ("chat_completions",)),
    ],
)
def test_dialects_of_a_provider(provider: str, caller: str, expected: tuple[str, ...]) -> None:
    assert dialects_of(Target(provider), caller) == expected


@pytest.mark.parametrize(
    ("provider", "stated", "caller", "expected"),
    [
        ("PLATFORM", ("MESSAGES", "CHAT_COMPLETIONS"), "chat_completions", ("chat_completions",)),
        ("PLATFORM", ("MESSAGES", "CHAT_COMPLETIONS"), "responses", ("messages", "chat_completions")),
        ("VENDOR_B_COMPATIBLE", ("RESPONSES",), "messages", ("responses",)),
        ("VENDOR_B", ("CHAT_COMPLETIONS",), "responses", ("chat_completions",)),
    ],
)
def test_stated_dialects_replace_the_providers(
    provider: str, stated: tuple[str, ...], caller: str, expected: tuple[str, ...]
) -> None:
    assert dialects_of(Target(provider, dialects=stated), caller) == expected


async def test_no_other_dialect_is_tried_where_they_are_stated(rig: PathRig) -> None:
    rig.directory.add_slug(SLUG, replace(compatible(), dialects=("CHAT_COMPLETIONS", "RESPONSES")))
    rig.upstream.will(said(NO_PATH, 404), said(NO_PATH, 404))
    assert [(await send_messages(rig)).status, (await rig.serve(asking())).status] == [404, 404]
    assert paths(rig) == [CHAT_PATH, CHAT_PATH]


async def test_targets_that_differ_in_their_dialects_share_no_attempt(rig: PathRig) -> None:
    rig.upstream.will(said(MESSAGE), said(COMPLETION), said(MESSAGE))
    for dialects in (None, ("CHAT_COMPLETIONS",), None):
        rig.directory.add_slug(SLUG, replace(compatible(), dialects=dialects))
        assert (await send_messages(rig)).json["content"] == [{"type": "text", "text": "hello"}]
    assert paths(rig) == [MESSAGES_PATH, CHAT_PATH, MESSAGES_PATH]


async def test_refused_stream_options_are_left_out_for_an_hour() -> None:
    now = 5.0
    dialects = Dialects(lambda: now, SEAL_KEYS)
    body = {"model": SLUG, "messages": [], "stream": True}

    def sent(call: Received) -> bytes:
        return bytes(dialects.build_body(call, compatible(), dialects.first_attempt(call, compatible())))

    call = received(body)
    refused_attempt = dialects.first_attempt(call, compatible())
    again = dialects.following(call, compatible(), refused_attempt, 400, b'{"error": "stream_options"}')
    assert again is not None
    assert b"stream_options" in sent(call)
    assert dialects.following(call, compatible(), again(), 200, b"") is None
    assert b"stream_options" not in sent(call)
    now += REMEMBERED_S
    assert b"stream_options" in sent(call)


def test_dialect_is_remembered_for_an_hour() -> None:
    now = 5.0
    memory = SpokenDialects(lambda: now)
    memory.remember(compatible(), "messages", "chat_completions")
    now += REMEMBERED_S - 1
    assert memory.known(compatible(), "messages") == "chat_completions"
    assert memory.known(compatible(), "responses") is None
    now += 1
    assert memory.known(compatible(), "messages") is None


def test_memory_of_dialects_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.dialects.spoken_dialects.MAX_REMEMBERED", 2)
    memory = SpokenDialects(lambda: 0.0)
    for model in "abc":
        memory.remember(compatible(model), "messages", "chat_completions")
    assert [memory.known(compatible(model), "messages") for model in "abc"] == [None, *["chat_completions"] * 2]
