"""Sealed reasoning never reaches a Chat Completions vendor that a slug was re-pointed to."""

import copy
from typing import Any

import orjson
import pytest

from proxy.dialects.chat_completions.reasoning import without_sealed
from proxy.dialects.middle.sealing import MARK
from tests.fakes.seals import seal, seals_of
from tests.proxy.dialects.samples import SLUG, VENDOR_B, build_request, received

Json = dict[str, Any]

USER: Json = {"role": "user", "content": "hi"}
SEALED: Json = {"type": "reasoning.encrypted", "data": seal("messages", {"a": 1}), "index": 0}
DAMAGED: Json = {"type": "reasoning.encrypted", "data": MARK + "messages.!"}
OWN: Json = {"type": "reasoning.encrypted", "data": "abc", "index": 1}


def answered(*details: Any) -> Json:
    return {"role": "assistant", "content": "a", "reasoning_content": "hm", "reasoning_details": list(details)}


@pytest.mark.parametrize(
    ("message", "remainder"),
    [
        (answered(SEALED), {"role": "assistant", "content": "a", "reasoning_content": "hm"}),
        (answered(SEALED, OWN, DAMAGED), answered(OWN)),
        (answered(OWN, "x"), answered(OWN, "x")),
        (answered(), answered()),
        ({"reasoning_details": "x"}, {"reasoning_details": "x"}),
        ("x", "x"),
    ],
)
def test_sealed_entries_are_removed(message: Any, remainder: Any) -> None:
    body = {"model": "m", "messages": [USER, message]}
    before = copy.deepcopy(body)
    assert without_sealed(body, seals_of()) == {"model": "m", "messages": [USER, remainder]}
    assert body == before


@pytest.mark.parametrize("messages", [None, "x", []])
def test_bodies_of_another_form_are_kept(messages: Any) -> None:
    assert without_sealed({"messages": messages}, seals_of()) == {"messages": messages}


def test_conversation_from_another_vendor_goes_on_at_openai() -> None:
    body = {"model": SLUG, "stream": True, "messages": [USER, answered(SEALED), USER], "seed": 1}
    vendor_body = orjson.loads(bytes(build_request(received(body), VENDOR_B, "sk").body))
    message = {"role": "assistant", "content": "a", "reasoning_content": "hm"}
    assert vendor_body == body | {
        "model": "gpt-x",
        "messages": [USER, message, USER],
        "stream_options": {"include_usage": True},
    }


def test_vendors_own_details_pass_as_they_came() -> None:
    raw = b'{ "model":"acme/fast", "messages":[{"role":"assistant","reasoning_details":[{"data":"abc"}]}]}'
    assert bytes(build_request(received(raw), VENDOR_B, "sk").body) == raw.replace(b"acme/fast", b"gpt-x")
