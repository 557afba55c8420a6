"""Sealed reasoning never reaches a Messages vendor: its own blocks are restored, others removed."""

import copy
from typing import Any

import pytest

from proxy.dialects.messages.unsealing import without_sealed
from proxy.dialects.middle.sealing import MARK
from proxy.dialects.registry import Dialects
from proxy.json_text.request_json import SHORT_BODY_BYTES
from tests.fakes.seals import SEAL_KEYS, seal, seals_of
from tests.proxy.dialects.samples import MESSAGES, SLUG, VENDOR_A, first_attempt, received

Json = dict[str, Any]

OWN: Json = {"type": "thinking", "thinking": "Hm", "signature": "EqQ"}
TEXT: Json = {"type": "text", "text": "a"}
SEALED_OWN: Json = {"type": "thinking", "thinking": "Hm", "signature": seal("messages", OWN)}
SEALED: Json = {"type": "thinking", "thinking": "Hm", "signature": seal("responses", {"id": "rs_1"})}
REDACTED: Json = {"type": "redacted_thinking", "data": seal("chat_completions", {"tool_call_extra": {}})}
DAMAGED: Json = {"type": "thinking", "thinking": "Hm", "signature": MARK + "responses.!"}


def unsealed(*blocks: Any) -> list[Any]:
    """The messages after a user's, which are left of an answer with these blocks."""
    ask = {"role": "user", "content": "hi"}
    body = {"model": "m", "messages": [ask, {"role": "assistant", "content": list(blocks)}]}
    before = copy.deepcopy(body)
    result = without_sealed(body, seals_of())
    assert body == before
    assert result["model"] == "m"
    assert result["messages"][0] == ask
    return list(result["messages"][1:])


def test_blocks_of_this_dialect_are_restored() -> None:
    assert unsealed(SEALED_OWN, TEXT) == [{"role": "assistant", "content": [OWN, TEXT]}]


@pytest.mark.parametrize("block", [SEALED, REDACTED, DAMAGED])
def test_blocks_of_other_dialects_are_removed(block: Json) -> None:
    assert unsealed(block, TEXT) == [{"role": "assistant", "content": [TEXT]}]


def test_message_of_nothing_else_is_removed() -> None:
    assert unsealed(SEALED, REDACTED) == []


@pytest.mark.parametrize("block", [OWN, TEXT, "x", {"type": "thinking"}, {"type": ["a"]}, {"signature": MARK}])
def test_everything_else_is_kept(block: Any) -> None:
    assert unsealed(block) == [{"role": "assistant", "content": [block]}]


@pytest.mark.parametrize("messages", [None, "x", [1], [{"content": "x"}], []])
def test_bodies_of_another_form_are_kept(messages: Any) -> None:
    assert without_sealed({"messages": messages}, seals_of()) == {"messages": messages}


def loop(*blocks: Json, **more: Any) -> Json:
    """A body in the middle of a tool loop that began with these blocks."""
    call: Json = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    result: Json = {"type": "tool_result", "tool_use_id": "a", "content": "1"}
    turns = [("user", "hi"), ("assistant", [*blocks, call]), ("user", [result])]
    return {"messages": [{"role": role, "content": content} for role, content in turns]} | more


CLEARS: Json = {"type": "clear_thinking_20251015", "keep": "all"}
OTHER_EDIT: Json = {"type": "clear_tool_uses_20250919"}


@pytest.mark.parametrize("kind", ["adaptive", "enabled"])
def test_thinking_is_off_where_the_vendor_would_miss_a_block(kind: str) -> None:
    body = loop(SEALED, thinking={"type": kind}, context_management={"edits": [CLEARS]}, max_tokens=9)
    assert without_sealed(body, seals_of()).keys() == {"messages", "max_tokens"}


def test_edits_that_need_no_thinking_are_kept() -> None:
    body = loop(SEALED, thinking={"type": "adaptive"}, context_management={"edits": [CLEARS, OTHER_EDIT]})
    assert without_sealed(body, seals_of())["context_management"] == {"edits": [OTHER_EDIT]}


def test_thinking_stays_on_where_no_block_is_missing() -> None:
    body = loop(SEALED, OWN, thinking={"type": "adaptive"})
    body["messages"] += [{"role": "assistant", "content": [SEALED, TEXT]}, {"role": "user", "content": "and"}]
    assert without_sealed(body, seals_of())["thinking"] == {"type": "adaptive"}
    assert without_sealed(loop(SEALED_OWN, thinking={"type": "adaptive"}), seals_of())["thinking"] == {
        "type": "adaptive"
    }


def test_thinking_is_the_vendor_s_affair_where_nothing_was_sealed() -> None:
    body = loop(thinking={"type": "adaptive"})
    assert without_sealed(body, seals_of()) == body


def test_caller_is_told_that_thinking_is_off() -> None:
    body = loop(SEALED, thinking={"type": "adaptive"}, model=SLUG, max_tokens=9)
    attempt = first_attempt(received(body, MESSAGES), VENDOR_A)
    assert attempt.json is not None
    assert "thinking" not in attempt.json
    assert attempt.notice == (
        'x-tollgate-reasoning: off; reason="the turn began without this vendor\'s reasoning"\r\n'
        "x-tollgate-left-out: messages.1.content.0 (reasoning)\r\n"
    )
    own = SEALED_OWN | {"signature": seal("messages", OWN, "VENDOR_A None")}
    same = first_attempt(received(loop(own, thinking={"type": "adaptive"}, model=SLUG), MESSAGES), VENDOR_A)
    assert same.notice == ""


@pytest.mark.parametrize("prompt", ["hi", "x" * SHORT_BODY_BYTES], ids=["short", "long"])
def test_seal_is_found_in_any_body_after_one_that_passed(prompt: str) -> None:
    """Bodies of both sizes are searched in different orders."""
    dialects = Dialects(lambda: 0.0, SEAL_KEYS)
    passing = dialects.first_attempt(received(loop(OWN, model=SLUG, max_tokens=9), MESSAGES), VENDOR_A)
    assert passing.json is None
    for mark, passes in ((MARK, False), ("another", True)):
        block = SEALED | {"signature": SEALED["signature"].replace(MARK, mark)}
        body = loop(block, system=prompt, model=SLUG, max_tokens=9)
        assert (dialects.first_attempt(received(body, MESSAGES), VENDOR_A) is passing) is passes
