"""Stock clients send and expect these, over the whole path on in-memory parts (docs/reference/inference.md#headers)."""

import json
from typing import Any

import pytest

from policy.billing import Tokens
from policy.credentials import KeyKind, digest_of, registered_prefix
from policy.endpoints import Target
from tests.fakes.directory import KEY, SLUG, WORKSPACE_KEY
from tests.fakes.path import PathRig
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
def rig() -> PathRig:
    return PathRig()


def raw(body: Any) -> bytes:
    return json.dumps(body).encode()


def use_provider(rig: PathRig, provider: str) -> None:
    rig.directory.add_slug(SLUG, Target(provider, secret_id="s1", target_model="their-model"))


def messages(target: str = "/v1/messages", **headers: str | None) -> FakeIncoming:
    return FakeIncoming(target, "POST", **headers).saying(MESSAGES)


# Answers.


async def test_failed_response_passes_and_is_billed_its_usage(rig: PathRig) -> None:
    rig.upstream.will(answer(raw(FAILED)))
    outgoing = await rig.serve(FakeIncoming("/v1/responses").saying({"model": SLUG, "input": "hi"}))
    assert (outgoing.status, outgoing.json) == (200, FAILED | {"model": SLUG})
    [closed] = rig.journal.closed
    assert (closed.status, closed.tokens) == (200, Tokens(input=7, output=0, cached_input=0))


@pytest.mark.parametrize(
    ("output", "billed"),
    [([], False), ([{"type": "message", "content": [{"type": "output_text", "text": "a"}]}], True)],
)
async def test_failed_response_without_usage_is_billed_only_for_output(
    rig: PathRig, output: list[Any], billed: bool
) -> None:
    rig.upstream.will(answer(raw(FAILED | {"usage": None, "output": output})))
    outgoing = await rig.serve(FakeIncoming("/v1/responses").saying({"model": SLUG, "input": "hi"}))
    assert outgoing.status == 200
    assert (rig.journal.closed[0].tokens != Tokens()) is billed


async def test_error_instead_of_a_response_is_a_502(rig: PathRig) -> None:
    rig.upstream.will(answer(raw({"error": {"message": "no"}})))
    outgoing = await rig.serve(FakeIncoming("/v1/responses").saying({"model": SLUG, "input": "hi"}))
    assert outgoing.status == 502


@pytest.mark.parametrize("status", [200, 429, 500])
async def test_upstreams_retry_headers_pass(rig: PathRig, status: int) -> None:
    retry_headers = [("x-should-retry", "false"), ("retry-after", "7"), ("request-id", "req_theirs"), ("x-other", "1")]
    body = COMPLETION if status == 200 else {"error": {"message": "no"}}
    rig.upstream.will(answer(raw(body), status, [("content-type", "application/json"), *retry_headers]))
    outgoing = await rig.serve(asking())
    assert [(name, outgoing.header(name)) for name, _ in retry_headers[:3]] == retry_headers[:3]
    assert outgoing.header("x-other") is None


async def test_each_messages_answer_has_a_request_id(rig: PathRig) -> None:
    use_provider(rig, "VENDOR_A")
    json_type = [("content-type", "application/json")]
    rig.upstream.will(
        answer(raw(MESSAGE), 200, json_type),
        answer(raw(MESSAGE), 200, [*json_type, ("request-id", "req_theirs")]),
        answer(raw({"error": {"message": "no"}}), 500, json_type),
    )
    for theirs in (None, "req_theirs", None):
        outgoing = await rig.serve(messages())
        ids = [value for name, value in outgoing.headers if name == "request-id"]
        assert ids == [theirs or outgoing.header("x-request-id")]


@pytest.mark.parametrize(
    ("incoming", "status"),
    [
        (messages(authorization=None), 401),
        (messages(authorization="Bearer nonsense"), 403),
        (FakeIncoming("/v1/messages?beta=true").saying(b"{"), 400),
        (FakeIncoming("/v1/messages", "DELETE"), 405),
        (FakeIncoming("/v1/messages/batches").saying(MESSAGES), 404),
        (FakeIncoming("/v1/messages").saying(MESSAGES | {"model": "acme/unknown"}), 404),
    ],
)
async def test_each_messages_refusal_has_our_request_id(rig: PathRig, incoming: FakeIncoming, status: int) -> None:
    outgoing = await rig.serve(incoming)
    assert outgoing.status == status
    assert outgoing.header("request-id") == outgoing.header("x-request-id") is not None


async def test_other_paths_add_no_request_id_header(rig: PathRig) -> None:
    rig.upstream.will(answer(raw(COMPLETION)))
    assert (await rig.serve(asking())).header("request-id") is None


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
async def test_refusal_message_is_the_reason_phrase(rig: PathRig, incoming: FakeIncoming, status: int) -> None:
    outgoing = await rig.serve(incoming)
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
async def test_upstream_error_is_the_reason_phrase_without_secrets(rig: PathRig, body: bytes, reason: str) -> None:
    rig.upstream.will(answer(body, 503))
    outgoing = await rig.serve(asking())
    assert (outgoing.status, outgoing.reason) == (503, reason)


async def test_success_has_the_default_reason_phrase(rig: PathRig) -> None:
    rig.upstream.will(answer(raw(COMPLETION)))
    assert (await rig.serve(asking())).reason == ""


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (404, "not_found_error"), (429, "rate_limit_error"), (500, "api_error")],
)
async def test_translated_error_has_the_fields_of_messages(rig: PathRig, status: int, kind: str) -> None:
    rig.upstream.will(
        answer(raw({"error": {"message": "no", "code": 7, "type": None}, "x": 1}), status),
        answer(raw({"error": {"message": "no", "type": "their_type"}}), status),
    )
    outgoing = await rig.serve(messages())
    assert outgoing.status == status
    assert outgoing.json == {"type": "error", "error": {"message": "no", "code": 7, "type": kind}, "x": 1}
    outgoing = await rig.serve(messages())
    assert outgoing.json == {"type": "error", "error": {"message": "no", "type": "their_type"}}


async def test_translated_error_has_the_fields_of_chat_completions(rig: PathRig) -> None:
    use_provider(rig, "VENDOR_A")
    theirs = {"type": "error", "error": {"type": "overloaded_error", "message": "no"}, "request_id": "req_1"}
    rig.upstream.will(answer(raw(theirs), 529), answer(raw(theirs), 200))
    for status in (529, 502):
        outgoing = await rig.serve(asking())
        assert outgoing.status == status
        assert outgoing.json == theirs | {"error": {"code": None, "param": None} | theirs["error"]}  # type: ignore[operator] # JSON


# Query parameters.


@pytest.mark.parametrize(
    ("query", "query_upstream"),
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
async def test_only_allowed_query_parameters_go_upstream(rig: PathRig, query: str, query_upstream: str) -> None:
    use_provider(rig, "VENDOR_A")
    rig.upstream.will(answer(raw(MESSAGE)))
    assert (await rig.serve(messages(f"/v1/messages{query}"))).status == 200
    assert rig.upstream.calls[0].url == f"https://vendor-a.test/v1/messages{query_upstream}"


async def test_translated_call_drops_its_query(rig: PathRig) -> None:
    rig.upstream.will(answer(raw(COMPLETION)))
    assert (await rig.serve(messages("/v1/messages?beta=true"))).status == 200
    assert rig.upstream.calls[0].url.endswith("/v1/chat/completions")


# Credentials.

FOREIGN_CREDENTIAL = "sk-ant-oat01-of-somebody-else"


@pytest.mark.parametrize(
    ("authorization", "x_api_key"),
    [
        (f"Bearer {FOREIGN_CREDENTIAL}", KEY),
        (f"Bearer {KEY}", FOREIGN_CREDENTIAL),
        (f"Basic {FOREIGN_CREDENTIAL}", KEY),
        ("Bearer tg_aaaaaaaaaaaa." + "x" * 40, KEY),
    ],
)
async def test_foreign_second_credential_is_ignored_and_never_forwarded(
    rig: PathRig, authorization: str, x_api_key: str
) -> None:
    rig.upstream.will(answer(raw(COMPLETION)))
    incoming = asking()
    incoming.fields = [("authorization", authorization), ("x-api-key", x_api_key)]
    assert (await rig.serve(incoming)).status == 200
    [call] = rig.upstream.calls
    assert call.headers["authorization"] == "Bearer sk-upstream-secret"
    assert FOREIGN_CREDENTIAL not in str((call, rig.meters.calls))
    assert KEY not in str(call)
    assert rig.directory.confirmations == 0


REGISTERED = "of-my-own/0123456789~0123456789"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("authorization", f"Bearer {REGISTERED}"),
        ("authorization", f"bearer  {REGISTERED}"),
        ("authorization", f"Api-Key {REGISTERED}"),
        ("x-api-key", REGISTERED),
    ],
)
async def test_key_of_ones_own_calls_as_one_of_ours(rig: PathRig, field: str, value: str) -> None:
    rig.directory.add_key(REGISTERED)
    for incoming in (asking(), messages()):
        rig.upstream.will(answer(raw(COMPLETION)))
        incoming.fields = [(field, value)]
        assert (await rig.serve(incoming)).status == 200
    assert REGISTERED not in str((rig.upstream.calls, rig.meters.calls, rig.journal.opened))
    assert {call.api_key_prefix for call in rig.journal.opened} == {registered_prefix(REGISTERED)}


async def test_key_that_was_registered_a_moment_ago_is_confirmed_apart_from_ours(rig: PathRig) -> None:
    incoming = asking()
    incoming.fields = [("authorization", f"Bearer {REGISTERED}")]
    assert (await rig.serve(incoming)).status == 403
    assert rig.directory.confirmed_as_ours == [False]
    rig.directory.add_key(REGISTERED)
    rig.directory.arrives_on_confirmation = [(digest_of(REGISTERED), rig.directory.keys.pop(digest_of(REGISTERED)))]
    rig.upstream.will(answer(raw(COMPLETION)))
    assert (await rig.serve(incoming)).status == 200
    assert rig.directory.confirmed_as_ours == [False, False]
    incoming = asking()
    incoming.fields = [("authorization", f"Bearer {KEY}x")]
    assert (await rig.serve(incoming)).status == 403
    assert rig.directory.confirmed_as_ours[2:] == [True]


@pytest.mark.parametrize(
    "credential", ["short", "tg_no-key-of-ours-0123456789", "eyJhbGciOiJ.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"]
)
async def test_text_that_cannot_be_a_key_is_refused_at_once(rig: PathRig, credential: str) -> None:
    rig.directory.unconfirmable = True
    incoming = asking()
    incoming.fields = [("authorization", f"Bearer {credential}")]
    assert (await rig.serve(incoming)).status == 403
    assert rig.directory.confirmations == 0


async def test_two_unknown_credentials_are_confirmed_once(rig: PathRig) -> None:
    incoming = asking()
    incoming.fields = [("authorization", f"Bearer {FOREIGN_CREDENTIAL}"), ("x-api-key", f"{KEY}x")]
    outgoing = await rig.serve(incoming)
    assert (outgoing.status, outgoing.json) == (403, {"error": "Authentication failed"})
    assert rig.directory.confirmations == 1


async def test_two_valid_keys_are_an_ambiguous_credential(rig: PathRig) -> None:
    other = "tg_bbbbbbbbbbbb." + "y" * 40
    rig.directory.add_key(other, KeyKind.FEDERATED)
    for second in (other, WORKSPACE_KEY):
        incoming = asking()
        incoming.fields = [("authorization", f"Bearer {KEY}"), ("x-api-key", second)]
        outgoing = await rig.serve(incoming)
        assert (outgoing.status, outgoing.json["error_code"]) == (400, "AMBIGUOUS_CREDENTIAL")
    assert not rig.upstream.calls


# Model listing.


async def listed(rig: PathRig, path: str, method: str = "GET", **headers: str | None) -> FakeOutgoing:
    return await rig.serve(FakeIncoming(path, method, **headers))


@pytest.mark.parametrize(
    "path", [f"/v1/models/{SLUG}", "/v1/models/" + SLUG.replace("/", "%2F"), f"/v1/models/{SLUG}?x=1"]
)
async def test_model_is_retrieved_by_its_slug(rig: PathRig, path: str) -> None:
    outgoing = await listed(rig, path)
    assert (outgoing.status, outgoing.json) == (
        200,
        {"id": SLUG, "object": "model", "created": 0, "owned_by": SLUG.partition("/")[0]},
    )


async def test_forbidden_and_unknown_models_get_the_same_404(rig: PathRig) -> None:
    rig.directory.add_slug("acme/hidden", Target("VENDOR_B", secret_id="s1"))
    for path in ("/v1/models/acme/hidden", "/v1/models/acme/unknown", "/v1/models/", "/v1/models/%FF%00"):
        outgoing = await listed(rig, path)
        assert (outgoing.status, outgoing.json["error_code"]) == (404, "MODEL_NOT_FOUND")
    assert (await listed(rig, f"/v1/models/{SLUG}", authorization=f"Bearer {WORKSPACE_KEY}")).status == 403


async def test_anthropic_version_header_selects_the_messages_listing(rig: PathRig) -> None:
    model = {"type": "model", "id": SLUG, "display_name": SLUG, "created_at": "1970-01-01T00:00:00Z"} | {
        "lifecycle": "active"
    }
    version = "2023-06-01"
    assert (await listed(rig, f"/v1/models/{SLUG}", anthropic_version=version)).json == model
    page = {"data": [model], "has_more": False, "first_id": SLUG, "last_id": SLUG}
    assert (await listed(rig, "/v1/models?limit=20", anthropic_version=version)).json == page
    rig.directory.endpoints.clear()
    empty = {"data": [], "has_more": False, "first_id": None, "last_id": None}
    assert (await listed(rig, "/v1/models", anthropic_version=version)).json == empty


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{SLUG}"])
async def test_models_accept_head_and_get_and_name_them_in_a_405(rig: PathRig, path: str) -> None:
    assert (await listed(rig, path, "HEAD")).body == (await listed(rig, path)).body
    outgoing = await listed(rig, path, "POST")
    assert (outgoing.status, outgoing.header("allow")) == (405, "GET, HEAD")
