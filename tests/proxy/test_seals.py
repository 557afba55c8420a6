"""Sealed reasoning over the whole path: what comes back is opened, left out and told, or refused, in every dialect."""

import json
from dataclasses import replace
from typing import Any

import pytest

from policy.endpoints import Target
from proxy.dialects.middle.sealing import SealKeys, Seals
from tests.fakes.directory import SLUG
from tests.fakes.path import SETTINGS, PathRig
from tests.fakes.seals import ANY_BLOCK
from tests.fakes.upstream_client import SSE, FakeAnswer, answer
from tests.fakes.wire import FakeIncoming, FakeOutgoing

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
CALLERS = (CHAT, MESSAGES, RESPONSES)
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "sig"}
DETAIL = {"type": "reasoning.text", "text": "Hm.", "signature": "c2ln", "index": 0}
FORGED = "is not what the gateway sealed: its MAC is wrong"
VENDOR_A = Target("VENDOR_A", secret_id="s1", target_model="m")
COMPATIBLE = Target("VENDOR_B_COMPATIBLE", secret_id="s1", target_model="m", base_url="https://x.test")
VENDOR_B = Target("VENDOR_B", secret_id="s1", target_model="m")


def message_answer() -> FakeAnswer:
    content = [THOUGHT, {"type": "text", "text": "Hi"}]
    body = {"id": "msg_1", "type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn"}
    return answer(json.dumps(body | {"usage": {"input_tokens": 1, "output_tokens": 1}}).encode())


def message_stream() -> FakeAnswer:
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 1, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm."}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "sig"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    return answer(headers=SSE, pieces=[f"data: {json.dumps(event)}\n\n".encode() for event in events])


def chat_answer() -> FakeAnswer:
    message = {"role": "assistant", "content": "Hi", "reasoning_content": "Hm.", "reasoning_details": [DETAIL]}
    body = {"id": "c", "created": 1, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    return answer(json.dumps(body | {"usage": {"prompt_tokens": 1, "completion_tokens": 1}}).encode())


def asked(path: str, *turns: Any, **members: Any) -> FakeIncoming:
    efforts: dict[str, dict[str, Any]] = {
        CHAT: {"reasoning_effort": "high"},
        MESSAGES: {"thinking": {"type": "adaptive"}, "max_tokens": 9_000},
        RESPONSES: {"reasoning": {"effort": "high", "summary": "auto"}},
    }
    effort = efforts[path]
    name = "input" if path == RESPONSES else "messages"
    return FakeIncoming(path).saying(
        {"model": SLUG, name: [{"role": "user", "content": "a"}, *turns]} | effort | members
    )


def returned(path: str, sealed: str) -> Any:
    """A turn with sealed reasoning, as callers of this path return it."""
    if path == CHAT:
        details = [{"type": "reasoning.encrypted", "data": sealed}]
        return {"role": "assistant", "content": "Hi", "reasoning_details": details}
    if path == MESSAGES:
        thinking = {"type": "thinking", "thinking": "Hm.", "signature": sealed}
        return {"role": "assistant", "content": [thinking, {"type": "text", "text": "Hi"}]}
    return {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed}


def seals_in(outgoing: FakeOutgoing) -> list[str]:
    text = bytes(outgoing.body).decode()
    return list(dict.fromkeys(part.split('"')[0] for part in text.split('"')[1:] if part.startswith("tollgate.")))


def rig_of(target: Target, *keys: bytes) -> PathRig:
    rig = PathRig(seal_keys=SealKeys(keys or (bytes(32),), SETTINGS.base_urls))
    rig.directory.add_slug(SLUG, target)
    return rig


async def sealed_by(path: str, target: Target, reply: FakeAnswer, *keys: bytes, **members: Any) -> str:
    """Return the seal of this target's reasoning for a caller of this path."""
    rig = rig_of(target, *keys)
    rig.upstream.will(reply)
    outgoing = await rig.serve(asked(path, **members))
    assert outgoing.status == 200
    [sealed] = seals_in(outgoing)
    assert sealed.startswith("tollgate.2.")
    return sealed


async def next_turn(rig: PathRig, path: str, sealed: str) -> tuple[FakeOutgoing, bytes]:
    """Return the seal with the next turn: the answer, and the body that went upstream."""
    rig.upstream.will(message_answer() if "VENDOR_A" in str(rig.directory.endpoints) else chat_answer())
    outgoing = await rig.serve(asked(path, returned(path, sealed), {"role": "user", "content": "b"}))
    return outgoing, b"".join(bytes(call.body) for call in rig.upstream.calls)


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize("reply", [message_answer, message_stream])
async def test_target_gets_its_own_reasoning_back(path: str, reply: Any) -> None:
    sealed = await sealed_by(path, VENDOR_A, reply(), stream=reply is message_stream)
    outgoing, body = await next_turn(rig_of(VENDOR_A), path, sealed)
    assert outgoing.status == 200
    assert THOUGHT in json.loads(body)["messages"][1]["content"]
    assert "x-tollgate-left-out" not in dict(outgoing.headers)


@pytest.mark.parametrize("path", CALLERS)
@pytest.mark.parametrize("sealed", ["tollgate.1.messages.eyJyb2xlIjoic3lzdGVtIn0", "tollgate.1.x", "tollgate.9.z"])
async def test_old_and_unknown_seals_are_left_out_and_told(path: str, sealed: str) -> None:
    for target in (VENDOR_A, VENDOR_B):
        outgoing, body = await next_turn(rig_of(target), path, sealed)
        assert outgoing.status == 200
        assert b"tollgate." not in body
        assert b'"role":"system"' not in body
        assert "(reasoning)" in dict(outgoing.headers)["x-tollgate-left-out"]


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_seals_of_another_origin_key_or_workspace_are_left_out_and_told(path: str) -> None:
    sealed = await sealed_by(path, VENDOR_A, message_answer())
    moved = rig_of(VENDOR_A)
    moved.settings = replace(SETTINGS, base_urls={"VENDOR_A": "https://elsewhere.test"})
    moved.seal_keys = SealKeys((bytes(32),), moved.settings.base_urls)
    moved = moved.rebuilt()
    rotated = rig_of(VENDOR_A, b"n" * 32)
    compatible = rig_of(COMPATIBLE)
    for rig in (moved, rotated, compatible):
        outgoing, body = await next_turn(rig, path, sealed)
        assert outgoing.status == 200
        assert b"sig" not in body
        assert "(reasoning)" in dict(outgoing.headers)["x-tollgate-left-out"]


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_seals_of_a_rotated_key_open_while_the_key_is_listed(path: str) -> None:
    sealed = await sealed_by(path, VENDOR_A, message_answer())
    outgoing, body = await next_turn(rig_of(VENDOR_A, b"n" * 32, bytes(32)), path, sealed)
    assert THOUGHT in json.loads(body)["messages"][1]["content"]
    assert "x-tollgate-left-out" not in dict(outgoing.headers)


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_forged_seal_is_refused_and_costs_nothing(path: str) -> None:
    sealed = await sealed_by(path, VENDOR_A, message_answer())
    head, _, _ = sealed.rpartition(".")
    for forged in (f"{head}.eyJyb2xlIjoic3lzdGVtIn0", sealed[:-1], sealed + "A" * 50_000, f"{head}.%%%", head):
        rig = rig_of(VENDOR_A)
        outgoing, body = await next_turn(rig, path, forged)
        assert (outgoing.status, outgoing.json["error_code"]) == (400, "UNTRANSLATABLE_REQUEST")
        assert FORGED in outgoing.json["error"]
        assert (body, rig.journal.closed) == (b"", [])


PASSED: dict[str, tuple[Target, str, dict[str, Any], str]] = {
    CHAT: (VENDOR_B, "chat_completions", {"reasoning_details": [DETAIL]}, "messages.1.reasoning_details.0.data"),
    MESSAGES: (VENDOR_A, "messages", THOUGHT, "messages.1.content.0"),
    RESPONSES: (VENDOR_B, "responses", {"type": "reasoning", "encrypted_content": "e"}, "input.1.encrypted_content"),
}


@pytest.mark.parametrize("path", PASSED)
async def test_a_seal_is_opened_or_refused_where_the_body_passes_unchanged(path: str) -> None:
    target, dialect, block, field = PASSED[path]
    rig = rig_of(target)
    sealed = sealed_for("w1", target, dialect, block)
    rig.upstream.will(answer(b"{}"))
    assert (await rig.serve(asked(path, returned(path, sealed)))).status == 200
    body = bytes(rig.upstream.calls[0].body)
    assert b"tollgate." not in body
    (name, value), *_ = reversed(block.items())
    assert f'"{name}":{json.dumps(value, separators=(",", ":"))}'.encode() in body
    outgoing = await rig.serve(asked(path, returned(path, sealed[:-4] + "AAAA")))
    assert (outgoing.status, len(rig.upstream.calls)) == (400, 1)
    assert outgoing.json["error"].startswith(f"{field}: {FORGED}")


@pytest.mark.parametrize("path", PASSED)
async def test_a_seal_of_another_workspace_is_left_out_and_told_where_the_body_passes(path: str) -> None:
    target, dialect, block, field = PASSED[path]
    rig = rig_of(target)
    rig.upstream.will(answer(b"{}"))
    outgoing = await rig.serve(asked(path, returned(path, sealed_for("w2", target, dialect, block))))
    assert dict(outgoing.headers)["x-tollgate-left-out"] == f"{field} (reasoning)"
    assert b"tollgate." not in bytes(rig.upstream.calls[0].body)


def sealed_for(workspace_id: str, target: Target, dialect: str, block: dict[str, Any]) -> str:
    keys = SealKeys((bytes(32),), SETTINGS.base_urls)
    return Seals(keys, workspace_id, keys.place(target), ANY_BLOCK).seal(dialect, block)
