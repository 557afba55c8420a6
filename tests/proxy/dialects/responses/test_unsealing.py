"""Sealed reasoning goes to no target that speaks Responses itself."""

from proxy.dialects.responses.unsealing import without_sealed
from tests.fakes.seals import seal, seals_of

OWN = {"summary": [], "type": "reasoning", "id": "rs_9", "encrypted_content": "abc"}
SEALED = {"type": "reasoning", "id": "rs_1", "summary": []}


def test_own_items_become_native_again_and_others_go() -> None:
    message = {"role": "user", "content": "hi"}
    items = [
        message,
        OWN,
        SEALED | {"encrypted_content": seal("responses", OWN)},
        SEALED | {"encrypted_content": seal("messages", {"type": "thinking"})},
        SEALED | {"encrypted_content": "tollgate.1.responses.%%%"},
        "not an item",
    ]
    body = {"model": "m", "input": items}
    assert without_sealed(body, seals_of()) == {"model": "m", "input": [message, OWN, OWN, "not an item"]}
    assert body["input"] == items


def test_body_without_items_is_as_it_was() -> None:
    assert without_sealed({"input": "hi"}, seals_of()) == {"input": "hi"}
