"""What stock clients send and look for, through the path on in-memory parts (docs/reference/inference.md#headers)."""

import json
from typing import Any

import pytest

from policy.billing import Tokens
from policy.credentials import KeyKind
from policy.endpoints import Target
from tests.fakes.directory import KEY, SLUG, WORKSPACE_KEY
from tests.fakes.path import House
from tests.fakes.upstream_client import answer
from tests.fakes.wire import FakeIncoming, FakeOutgoing, asking

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
COMPLETION = {"model": "their-model", "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}}]}
FAILED = {
    "id": "resp_1",
    "object": "response",
    "status": "failed",
    "error": {"code": "server_error", "message": "The model failed"},
    "model": "their-model",
    "output": [],
    "usage": {"input_tokens": 7, "output_tokens": 0, "total_tokens": 7},
}


@pytest.fixture
def house() -> House:
    return House()


def raw(body: Any) -> bytes:
    return json.dumps(body).encode()


def to(house: House, provider: str) -> None:
    house.directory.add_slug(SLUG, Target(provider, secret_id="s1", target_model="their-model"))


def messages(target: str = "/v1/messages", **headers: str | None) -> FakeIncoming:
    return FakeIncoming(target, "POST", **headers).saying(MESSAGES)


# Answers.


async def test_a_failed_response_passes_as_it_came_and_is_billed_its_usage(house: House) -> None:
    house.upstream.will(answer(raw(FAILED)))
    outgoing = await house.serve(FakeIncoming("/v1/responses").saying({"model": SLUG, "input": "hi"}))
    assert (outgoing.status, outgoing.json) == (200, FAILED | {"model": SLUG})
    [closed] = house.journal.closed
    assert (closed.status, closed.tokens) == (200, Tokens(input=7, output=0, cached_input=0))


@pytest.mark.parametrize(("output", "billed"), [([], False), ([{"type": "message", "content": "a"}], True)])
async def test_a_failed_response_without_usage_is_billed_only_if_it_said_something(
    house: House, output: list[Any], billed: bool
) -> None:
    house.upstream.will(answer(raw(FAILED | {"usage": None, "output": output})))
    outgoing = await house.serve(FakeIncoming("/v1/responses").saying({"model": SLUG, "input": "hi"}))
    assert outgoing.status == 200
    assert (house.journal.closed[0].tokens != Tokens()) is billed


async def test_an_error_in_place_of_a_response_is_a_502_still(house: House) -> None:
    house.upstream.will(answer(raw({"error": {"message": "no"}})))
    outgoing = await house.serve(FakeIncoming("/v1/responses").saying({"model": SLUG, "input": "hi"}))
    assert outgoing.status == 502


@pytest.mark.parametrize("status", [200, 429, 500])
async def test_what_clients_retry_by_passes_from_upstream(house: House, status: int) -> None:
    told = [("x-should-retry", "false"), ("retry-after", "7"), ("request-id", "req_theirs"), ("x-other", "1")]
    body = COMPLETION if status == 200 else {"error": {"message": "no"}}
    house.upstream.will(answer(raw(body), status, [("content-type", "application/json"), *told]))
    outgoing = await house.serve(asking())
    assert [(name, outgoing.header(name)) for name, _ in told[:3]] == told[:3]
    assert outgoing.header("x-other") is None


async def test_each_answer_on_the_messages_path_bears_a_request_id(house: House) -> None:
    to(house, "VENDOR_A")
    json_type = [("content-type", "application/json")]
    house.upstream.will(
        answer(raw(MESSAGE), 200, json_type),
        answer(raw(MESSAGE), 200, [*json_type, ("request-id", "req_theirs")]),
        answer(raw({"error": {"message": "no"}}), 500, json_type),
    )
    for theirs in (None, "req_theirs", None):
        outgoing = await house.serve(messages())
        ids = [value for name, value in outgoing.headers if name == "request-id"]
        assert ids == [theirs or outgoing.header("x-request-id")]


@pytest.mark.parametrize(
    ("incoming", "status"),
    [
        (messages(authorization=None), 401),
        (messages(authorization="Bearer nonsense"), 403),
        (FakeIncoming("/v1/messages?beta=true").saying(b"{"), 400),
        (FakeIncoming("/v1/messages", "DELETE"), 405),
        (FakeIncoming("/v1/messages/count_tokens").saying(MESSAGES), 404),
        (FakeIncoming("/v1/messages").saying(MESSAGES | {"model": "acme/unknown"}), 404),
    ],
)
async def test_each_refusal_on_the_messages_path_bears_our_request_id(
    house: House, incoming: FakeIncoming, status: int
) -> None:
    outgoing = await house.serve(incoming)
    assert outgoing.status == status
    assert outgoing.header("request-id") == outgoing.header("x-request-id") is not None


async def test_other_paths_have_no_request_id_of_ours(house: House) -> None:
    house.upstream.will(answer(raw(COMPLETION)))
    assert (await house.serve(asking())).header("request-id") is None


# Errors.


@pytest.mark.parametrize(
    ("incoming", "status"),
    [
        (FakeIncoming(authorization=None), 401),
        (FakeIncoming(authorization="Bearer nonsense"), 403),
        (FakeIncoming().saying(b"{"), 400),
        (asking(model="acme/unknown"), 404),
        (FakeIncoming().saying(b" " * 100_001), 413),
    ],
)
async def test_an_error_of_ours_is_told_in_the_status_line_too(
    house: House, incoming: FakeIncoming, status: int
) -> None:
    outgoing = await house.serve(incoming)
    assert outgoing.status == status
    assert outgoing.reason == outgoing.json["error"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"overloaded, sorry\n", "overloaded, sorry"),
        (raw({"error": "flat"}), "flat"),
        (raw({"error": {"message": "nested"}}), "nested"),
        (raw({"error": {"message": 7}}), ""),
        (b"", "The upstream is not available"),
        (raw({"error": "the key sk-upstream-secret"}).replace(b"-upstream", b"\\u002dupstream"), "the key [hidden]"),
    ],
)
async def test_an_upstreams_error_is_told_in_the_status_line_without_secrets(
    house: House, body: bytes, reason: str
) -> None:
    house.upstream.will(answer(body, 503))
    outgoing = await house.serve(asking())
    assert (outgoing.status, outgoing.reason) == (503, reason)


async def test_a_success_has_its_own_reason(house: House) -> None:
    house.upstream.will(answer(raw(COMPLETION)))
    assert (await house.serve(asking())).reason == ""


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (404, "not_found_error"), (429, "rate_limit_error"), (500, "api_error")],
)
async def test_a_translated_vendors_error_gets_what_the_messages_dialect_adds(
    house: House, status: int, kind: str
) -> None:
    house.upstream.will(
        answer(raw({"error": {"message": "no", "code": 7, "type": None}, "x": 1}), status),
        answer(raw({"error": {"message": "no", "type": "their_type"}}), status),
    )
    outgoing = await house.serve(messages())
    assert outgoing.status == status
    assert outgoing.json == {"type": "error", "error": {"message": "no", "code": 7, "type": kind}, "x": 1}
    outgoing = await house.serve(messages())
    assert outgoing.json == {"type": "error", "error": {"message": "no", "type": "their_type"}}


async def test_a_translated_vendors_error_gets_what_chat_completions_adds(house: House) -> None:
    to(house, "VENDOR_A")
    theirs = {"type": "error", "error": {"type": "overloaded_error", "message": "no"}, "request_id": "req_1"}
    house.upstream.will(answer(raw(theirs), 529), answer(raw(theirs), 200))
    for status in (529, 502):
        outgoing = await house.serve(asking())
        assert outgoing.status == status
        assert outgoing.json == theirs | {"error": {"code": None, "param": None} | theirs["error"]}  # type: ignore[operator] # JSON


# Query.


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("?beta=true", "?beta=true"),
        ("?key=tg_x&beta=true&beta=false&api-version=1", "?beta=true"),
        ("?beta=a%26b", ""),
        ("?beta=", ""),
        ("?Beta=true", ""),
        ("?", ""),
        ("", ""),
    ],
)
async def test_query_parameters_go_upstream_by_an_allow_list(house: House, query: str, kept: str) -> None:
    to(house, "VENDOR_A")
    house.upstream.will(answer(raw(MESSAGE)))
    assert (await house.serve(messages(f"/v1/messages{query}"))).status == 200
    assert house.upstream.calls[0].url == f"https://vendor-a.test/v1/messages{kept}"


async def test_a_translated_calls_query_means_nothing_to_the_other_dialect(house: House) -> None:
    house.upstream.will(answer(raw(COMPLETION)))
    assert (await house.serve(messages("/v1/messages?beta=true"))).status == 200
    assert house.upstream.calls[0].url.endswith("/v1/chat/completions")


# Credentials.

OTHERS = "sk-ant-oat01-of-somebody-else"


@pytest.mark.parametrize(
    ("authorization", "x_api_key"),
    [
        (f"Bearer {OTHERS}", KEY),
        (f"Bearer {KEY}", OTHERS),
        (f"Basic {OTHERS}", KEY),
        ("Bearer tg_aaaaaaaaaaaa." + "x" * 40, KEY),
    ],
)
async def test_of_two_credentials_ours_is_used_and_the_other_goes_nowhere(
    house: House, authorization: str, x_api_key: str
) -> None:
    house.upstream.will(answer(raw(COMPLETION)))
    incoming = asking()
    incoming.fields = [("authorization", authorization), ("x-api-key", x_api_key)]
    assert (await house.serve(incoming)).status == 200
    [sent] = house.upstream.calls
    assert sent.headers["authorization"] == "Bearer sk-upstream-secret"
    assert OTHERS not in str((sent, house.access_log.records))
    assert KEY not in str(sent)
    assert house.directory.confirmations == 0


async def test_of_two_credentials_neither_of_which_is_ours_control_is_asked_once(house: House) -> None:
    incoming = asking()
    incoming.fields = [("authorization", f"Bearer {OTHERS}"), ("x-api-key", f"{KEY}x")]
    outgoing = await house.serve(incoming)
    assert (outgoing.status, outgoing.json) == (403, {"error": "Authentication failed"})
    assert house.directory.confirmations == 1


async def test_two_keys_of_ours_are_refused_for_nobody_can_say_who_pays(house: House) -> None:
    other = "tg_bbbbbbbbbbbb." + "y" * 40
    house.directory.add_key(other, KeyKind.FEDERATED)
    for second in (other, WORKSPACE_KEY):
        incoming = asking()
        incoming.fields = [("authorization", f"Bearer {KEY}"), ("x-api-key", second)]
        outgoing = await house.serve(incoming)
        assert (outgoing.status, outgoing.json["error_code"]) == (400, "AMBIGUOUS_CREDENTIAL")
    assert not house.upstream.calls


# Listing.


async def listed(house: House, path: str, method: str = "GET", **headers: str | None) -> FakeOutgoing:
    return await house.serve(FakeIncoming(path, method, **headers))


@pytest.mark.parametrize(
    "path", [f"/v1/models/{SLUG}", "/v1/models/" + SLUG.replace("/", "%2F"), f"/v1/models/{SLUG}?x=1"]
)
async def test_one_model_by_its_slug(house: House, path: str) -> None:
    outgoing = await listed(house, path)
    assert (outgoing.status, outgoing.json) == (
        200,
        {"id": SLUG, "object": "model", "created": 0, "owned_by": SLUG.partition("/")[0]},
    )


async def test_a_model_that_the_group_may_not_call_is_as_unknown_as_one_that_is_not_there(house: House) -> None:
    house.directory.add_slug("acme/hidden", Target("VENDOR_B", secret_id="s1"))
    for path in ("/v1/models/acme/hidden", "/v1/models/acme/unknown", "/v1/models/", "/v1/models/%FF%00"):
        outgoing = await listed(house, path)
        assert (outgoing.status, outgoing.json["error_code"]) == (404, "MODEL_NOT_FOUND")
    assert (await listed(house, f"/v1/models/{SLUG}", authorization=f"Bearer {WORKSPACE_KEY}")).status == 403


async def test_the_header_chooses_the_messages_shape(house: House) -> None:
    model = {"type": "model", "id": SLUG, "display_name": SLUG, "created_at": "1970-01-01T00:00:00Z"}
    version = "2023-06-01"
    assert (await listed(house, f"/v1/models/{SLUG}", anthropic_version=version)).json == model
    page = {"data": [model], "has_more": False, "first_id": SLUG, "last_id": SLUG}
    assert (await listed(house, "/v1/models?limit=20", anthropic_version=version)).json == page
    house.directory.endpoints.clear()
    empty = {"data": [], "has_more": False, "first_id": None, "last_id": None}
    assert (await listed(house, "/v1/models", anthropic_version=version)).json == empty


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{SLUG}"])
async def test_head_answers_what_get_does_and_other_methods_are_told_so(house: House, path: str) -> None:
    assert (await listed(house, path, "HEAD")).body == (await listed(house, path)).body
    outgoing = await listed(house, path, "POST")
    assert (outgoing.status, outgoing.header("allow")) == (405, "GET, HEAD")
