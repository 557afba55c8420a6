"""`/v1/messages/count_tokens`: passed or estimated; one request against limits, no tokens."""

import json
from typing import Any

import pytest

from policy.billing import Tokens
from policy.endpoints import Target, VendorCConfig
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from tests.fakes.directory import SLUG, platform
from tests.fakes.path import PathRig
from tests.fakes.seals import seal
from tests.fakes.upstream_client import answer
from tests.fakes.wire import FakeIncoming, FakeOutgoing

PATH = "/v1/messages/count_tokens"
ASKED = {"model": SLUG, "system": "Be brief.", "messages": [{"role": "user", "content": "How many tokens are these?"}]}
COUNTED = b'{"input_tokens":2095}'
COMPATIBLE = Target("VENDOR_B_COMPATIBLE", secret_id="s1", base_url="https://x.test/v1", target_model="their-model")


@pytest.fixture
def rig() -> PathRig:
    return PathRig()


async def ask(rig: PathRig, target: Target, **headers: str) -> FakeOutgoing:
    rig.directory.add_slug(SLUG, target)
    return await rig.serve(FakeIncoming(PATH, **headers).saying(ASKED))


def targets(*providers: str) -> list[Any]:
    config = VendorCConfig("p", "l")
    target_of = {
        "VENDOR_A": Target("VENDOR_A", secret_id="s1", target_model="their-model"),
        "VENDOR_B": Target("VENDOR_B", secret_id="s1", target_model="their-model"),
        "VENDOR_B_COMPATIBLE": COMPATIBLE,
        "VENDOR_C": Target("VENDOR_C", secret_id="s1", vendor_c_config=config, target_model="their-model"),
        "PLATFORM": platform(),
    }
    return [pytest.param(target_of[provider], id=provider) for provider in providers]


@pytest.mark.parametrize("target", targets("VENDOR_A", "VENDOR_B_COMPATIBLE", "PLATFORM"))
async def test_count_passes_and_its_event_has_no_tokens(rig: PathRig, target: Target) -> None:
    rig.directory.deploy("ACTIVE", "http://one.test")
    rig.upstream.will(answer(COUNTED))
    outgoing = await ask(rig, target, anthropic_beta="b-1")
    assert (outgoing.status, outgoing.body) == (200, COUNTED)
    [call] = rig.upstream.calls
    assert call.url.endswith("/v1/messages/count_tokens")
    assert call.headers["anthropic-version"] == "2023-06-01"
    assert call.headers["anthropic-beta"] == "b-1"
    credential = {"VENDOR_A": ("x-api-key", "sk-upstream-secret"), "PLATFORM": ("authorization", None)}
    name, value = credential.get(target.provider, ("authorization", "Bearer sk-upstream-secret"))
    assert call.headers.get(name) == value
    assert json.loads(bytes(call.body))["model"] == (target.target_model or SLUG)
    [closed] = rig.journal.closed
    assert (closed.status, closed.tokens, closed.is_count) == (200, Tokens(), True)
    assert rig.meters.unreported == []
    rig.check_settled()


@pytest.mark.parametrize("target", targets("VENDOR_B", "VENDOR_C"))
async def test_count_is_estimated_without_an_event_where_the_vendor_has_none(rig: PathRig, target: Target) -> None:
    outgoing = await ask(rig, target)
    assert outgoing.status == 200
    assert outgoing.header("content-type") == "application/json"
    assert outgoing.header("request-id")
    assert 7 <= outgoing.json["input_tokens"] <= 15
    assert list(outgoing.json) == ["input_tokens"]
    assert not rig.upstream.calls
    assert not rig.journal.opened
    assert [(call.status, call.tokens) for call in rig.meters.calls] == [(200, None)]
    rig.check_settled()


@pytest.mark.parametrize(("status", "body"), [(404, b'{"detail":"Not Found"}'), (405, b""), (404, b"<html>")])
async def test_count_is_estimated_where_the_server_lacks_the_path(rig: PathRig, status: int, body: bytes) -> None:
    rig.upstream.will(answer(body, status))
    outgoing = await ask(rig, COMPATIBLE)
    assert outgoing.status == 200
    assert outgoing.json["input_tokens"] > 0
    [closed] = rig.journal.closed
    assert (closed.status, closed.tokens) == (200, Tokens())
    assert (await ask(rig, COMPATIBLE)).body == outgoing.body
    assert len(rig.upstream.calls) == 1, "it is not asked again for an hour"
    rig.check_settled()


async def test_target_that_lacks_messages_is_not_asked_to_count(rig: PathRig) -> None:
    rig.directory.add_slug(SLUG, COMPATIBLE)
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    completion = json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode()
    rig.upstream.will(answer(b'{"detail":"Not Found"}', 404), answer(completion))
    assert (await rig.serve(FakeIncoming("/v1/messages").saying(ASKED | {"max_tokens": 9}))).status == 200
    assert (await ask(rig, COMPATIBLE)).json["input_tokens"] > 0
    assert len(rig.upstream.calls) == 2


@pytest.mark.parametrize(
    ("status", "body"), [(404, b'{"error":{"message":"no such model"}}'), (400, b'{"error":"no"}')]
)
async def test_other_errors_of_the_target_pass(rig: PathRig, status: int, body: bytes) -> None:
    rig.upstream.will(answer(body, status))
    outgoing = await ask(rig, COMPATIBLE)
    assert (outgoing.status, outgoing.body) == (status, body)


@pytest.mark.parametrize("target", targets("VENDOR_A", "VENDOR_B"))
async def test_count_takes_one_request_and_no_tokens(rig: PathRig, target: Target) -> None:
    rig.directory.limit(Limit(LimitType.REQUEST, Unit.MINUTE, 2), Limit(LimitType.TOKEN, Unit.MINUTE, 5))
    rig.upstream.will(*[answer(COUNTED) for _ in range(2)])
    answers = [await ask(rig, target) for _ in range(3)]
    assert [outgoing.status for outgoing in answers] == [200, 200, 429]
    assert [outgoing.header("x-ratelimit-remaining-requests") for outgoing in answers] == ["1", "0", "0"]
    assert {outgoing.header("x-ratelimit-remaining-tokens") for outgoing in answers} == {"5"}
    rig.check_settled()


async def test_target_counts_what_the_message_would_send(rig: PathRig) -> None:
    sealed = seal("chat_completions", {"reasoning_content": "Hm."})
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": sealed}
    turns = [{"role": "assistant", "content": [thinking, {"type": "text", "text": "Yes."}]}, ASKED["messages"][0]]
    rig.directory.add_slug(SLUG, Target("VENDOR_A", secret_id="s1", target_model="their-model"))
    rig.upstream.will(answer(COUNTED), answer(b"{}"))
    for path in (PATH, "/v1/messages"):
        await rig.serve(FakeIncoming(path).saying(ASKED | {"messages": turns}))
    counted, message_body = (json.loads(bytes(call.body)) for call in rig.upstream.calls)
    assert counted == message_body
    assert sealed not in json.dumps(counted)


async def test_count_is_checked_as_any_call(rig: PathRig) -> None:
    assert (await rig.serve(FakeIncoming(PATH).saying(ASKED | {"model": "acme/unknown"}))).status == 404
    assert (await rig.serve(FakeIncoming(PATH).saying(b"{"))).status == 400
    assert (await rig.serve(FakeIncoming(PATH, "GET"))).header("allow") == "POST"
