"""Members that a target forbids are refused on every path and provider, and take nothing from limits."""

import asyncio
import json
from typing import Any

import pytest

from policy.endpoints import Target, VendorCConfig
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from tests.fakes.directory import SLUG, platform
from tests.fakes.path import PathRig
from tests.fakes.upstream_client import answer
from tests.fakes.wire import FakeIncoming, FakeOutgoing
from tests.proxy.test_passed_paths import FILE, field, form

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
NAMED = {
    CHAT: ("messages", [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file_1"}}]}]),
    MESSAGES: (
        "messages",
        [{"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": "f"}}]}],
    ),
    RESPONSES: ("previous_response_id", "resp_1"),
}
SEARCH = {
    CHAT: {"type": "web_search"},
    MESSAGES: {"type": "web_search_20250305", "name": "web_search"},
    RESPONSES: {"type": "web_search"},
}
TARGETS: dict[str, dict[str, Any]] = {
    "VENDOR_A": {"secret_id": "s1"},
    "VENDOR_B": {"secret_id": "s1"},
    "VENDOR_C": {"secret_id": "s1", "vendor_c_config": VendorCConfig("p", "l")},
    "VENDOR_B_COMPATIBLE": {"secret_id": "s1", "base_url": "https://x.test"},
    "PLATFORM_MODEL_API": {"secret_id": "s1"},
    "PLATFORM": {"model_id": platform().model_id},
}


def target(provider: str, **options: Any) -> Target:
    return Target(provider, target_model="m", **TARGETS[provider], **options)


def asking(path: str, **members: Any) -> FakeIncoming:
    usual = {"messages": [{"role": "user", "content": "hi"}]} if path != RESPONSES else {"input": "hi"}
    return FakeIncoming(path).saying({"model": SLUG, "max_tokens": 9, **usual, **members})


async def refused(rig: PathRig, incoming: FakeIncoming) -> str:
    outgoing = await rig.serve(incoming)
    assert (outgoing.status, rig.upstream.calls) == (400, [])
    return str(outgoing.json["error"])


@pytest.mark.parametrize("provider", TARGETS)
@pytest.mark.parametrize("path", NAMED)
async def test_state_is_refused_and_costs_nothing(provider: str, path: str) -> None:
    rig = PathRig()
    rig.directory.limit(Limit(LimitType.REQUEST, Unit.DAY, 1))
    rig.directory.add_slug(SLUG, target(provider))
    name, value = NAMED[path]
    for _ in range(3):  # a call that counted would make the next one a 429
        assert name in await refused(rig, asking(path, **{name: value}))
    assert not rig.journal.closed


@pytest.mark.parametrize("provider", TARGETS)
async def test_background_is_refused_whatever_the_target_passes(provider: str) -> None:
    for options in ({}, {"upstream_state": "PASS"}):
        rig = PathRig()
        rig.directory.add_slug(SLUG, target(provider, **options))
        assert "background: must be false" in await refused(rig, asking(RESPONSES, background=True))


@pytest.mark.parametrize(("path", "provider"), [(CHAT, "VENDOR_B"), (RESPONSES, "VENDOR_B"), (MESSAGES, "VENDOR_A")])
async def test_target_may_pass_state_and_priced_options(path: str, provider: str) -> None:
    rig = PathRig()
    rig.directory.add_slug(SLUG, target(provider, upstream_state="PASS", price_options="PASS"))
    name, value = NAMED[path]
    members = {name: value, "tools": [SEARCH[path]], "service_tier": "priority"}
    rig.upstream.will(answer(b'{"id":"x"}'))
    assert (await rig.serve(asking(path, **members))).status == 200
    [call] = rig.upstream.calls
    body = json.loads(bytes(call.body))
    assert {member: body[member] for member in members} == members


@pytest.mark.parametrize("provider", TARGETS)
@pytest.mark.parametrize("path", SEARCH)
async def test_priced_options_are_refused_where_the_target_says_so(provider: str, path: str) -> None:
    rig = PathRig()
    rig.directory.add_slug(SLUG, target(provider, price_options="REFUSE"))
    assert "tools.0" in await refused(rig, asking(path, tools=[SEARCH[path]]))
    assert "service_tier" in await refused(rig, asking(path, service_tier="flex"))


async def test_translated_call_stays_refused_where_the_target_passes_state() -> None:
    rig = PathRig()
    rig.directory.add_slug(SLUG, target("VENDOR_A", upstream_state="PASS"))
    assert "previous_response_id: the gateway keeps no responses" in await refused(
        rig, asking(RESPONSES, previous_response_id="resp_1")
    )


async def test_long_body_is_checked_while_the_loop_serves_others() -> None:
    rig = PathRig()
    rig.directory.add_slug(SLUG, target("VENDOR_B"))
    long = [{"role": "user", "content": "long text " * 5_000}, *NAMED[CHAT][1]]
    incoming = asking(CHAT, messages=long)
    outgoing = FakeOutgoing()
    task = asyncio.ensure_future(rig.pipeline.handle(incoming, outgoing))
    await asyncio.sleep(0)
    assert not task.done()
    await task
    assert "messages.1.content.0.file.file_id" in outgoing.json["error"]


PART = field("image[file_id]", "file_1")


@pytest.mark.parametrize("parts", [(PART, field("model", SLUG), FILE), (field("model", SLUG), PART, FILE)])
async def test_part_of_a_form_that_names_state_is_refused_before_and_after_the_model(parts: tuple[bytes, ...]) -> None:
    rig = PathRig()
    incoming = form("/v1/images/edits", b"".join(parts), b"--b--\r\n")
    rig.upstream.will(answer(b"{}"))
    outgoing = await rig.serve(incoming)
    assert (outgoing.status, outgoing.json["error_code"]) == (400, "MALFORMED_REQUEST")
    assert outgoing.json["error"].startswith("image[file_id] names state")
    assert not any(PART in upload for upload in rig.upstream.uploaded)


async def test_target_may_pass_a_part_of_a_form_that_names_state() -> None:
    rig = PathRig()
    rig.directory.add_slug(SLUG, target("VENDOR_B", upstream_state="PASS"))
    rig.upstream.will(answer(b"{}"))
    outgoing = await rig.serve(form("/v1/images/edits", field("model", SLUG), PART, FILE, b"--b--\r\n"))
    assert outgoing.status == 200
    assert PART in rig.upstream.uploaded[0]
