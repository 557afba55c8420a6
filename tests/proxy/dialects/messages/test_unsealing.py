"""Sealed reasoning never reaches a Messages vendor: its own blocks are restored, others removed."""

import copy
from typing import Any

import pytest

from proxy.dialects.messages.unsealing import without_sealed
from proxy.dialects.middle.sealing import MARK, seal

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
    result = without_sealed(body)
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
    assert without_sealed({"messages": messages}) == {"messages": messages}
