"""Seals open for the workspace, provider and origin that they were made for, and for nobody else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.endpoints import Target
from proxy.dialects.middle.sealing import MARK, SealKeys, Seals, has_reasoning
from proxy.errors import UntranslatableError

OLD = b"o" * 32
NEW = b"n" * 32
OTHER = b"x" * 32
BLOCK = {"type": "thinking", "thinking": "Hm", "signature": "sig"}
PLACE = "VENDOR_A https://a.test"
TARGET = Target("VENDOR_B_COMPATIBLE", base_url="https://a.test/v1", secret_id="s")


def seals(*keys: bytes, workspace: str = "ws_1", place: str = PLACE) -> Seals:
    readers = dict.fromkeys(("messages", "responses"), lambda block: block if "type" in block else None)
    return Seals(SealKeys(keys or (NEW,), {}), workspace, place, readers)


SEALED = seals().seal("messages", BLOCK)


@given(st.dictionaries(st.text(), st.text() | st.integers(0, 9)), st.sampled_from(["messages", "responses"]))
def test_a_sealed_block_opens_as_it_was(native: dict[str, Any], dialect: str) -> None:
    opening = seals()
    sealed = opening.seal(dialect, {"type": "x"} | native)
    assert sealed.startswith(f"{MARK}2.")
    assert sealed.isascii()
    assert opening.open(sealed, "f") == (dialect, {"type": "x"} | native)
    assert opening.left_out == []


def test_several_proxies_with_the_same_keys_open_each_others_seals() -> None:
    assert seals().open(SEALED, "f") == ("messages", BLOCK)


def test_seals_outlive_a_rotation_until_their_key_is_gone() -> None:
    sealed = seals(OLD).seal("messages", BLOCK)
    rotated = seals(NEW, OLD)
    assert rotated.open(sealed, "f") == ("messages", BLOCK)
    again = rotated.seal("messages", BLOCK)
    assert seals(NEW).open(again, "f") == ("messages", BLOCK), "the first key seals"
    after = seals(NEW)
    assert after.open(sealed, "messages.1.content.0.signature") is None
    assert after.left_out == ["messages.1.content.0.signature (reasoning)"]


@pytest.mark.parametrize(
    "opening",
    [
        seals(OTHER),
        seals(workspace="ws_2"),
        seals(place="VENDOR_B https://a.test"),
        seals(place="VENDOR_A https://b.test"),
    ],
    ids=["another key", "another workspace", "another provider", "another origin"],
)
def test_what_another_one_sealed_is_left_out_and_noted(opening: Seals) -> None:
    assert opening.open(SEALED, "f") is None
    assert opening.left_out == ["f (reasoning)"]


@pytest.mark.parametrize(
    "text",
    [
        MARK,
        "tollgate.1.messages.e30",
        "tollgate.1.messages.!",
        "tollgate.3.x",
        "tollgate.2",
        "tollgate.2.ffffffffffffffff",
    ],
)
def test_other_versions_and_unknown_keys_are_left_out(text: str) -> None:
    opening = seals()
    assert opening.open(text, "f") is None
    assert opening.left_out == ["f (reasoning)"]


def test_every_changed_byte_is_refused_or_left_out() -> None:
    """A change of version, key id or place makes it another's; any other change is a forgery."""
    key_and_place = len(f"{MARK}2.") + 16 + 1 + 16
    for at in range(len(MARK), len(SEALED)):
        changed = SEALED[:at] + ("A" if SEALED[at] != "A" else "B") + SEALED[at + 1 :]
        if (at < key_and_place and SEALED[at] != ".") or (SEALED[at] == "." and at < len(f"{MARK}2.") + 17):
            assert seals().open(changed, "f") is None
        else:
            with pytest.raises(UntranslatableError, match="f: is not what the gateway sealed: its MAC is wrong"):
                seals().open(changed, "f")


@pytest.mark.parametrize("cut", [-1, -20, len(SEALED) // 2, 45])
def test_a_truncated_seal_is_refused(cut: int) -> None:
    with pytest.raises(UntranslatableError, match="its MAC is wrong"):
        seals().open(SEALED[:cut], "f")


@pytest.mark.parametrize("more", ["=", ".", "\n", "é", "\ud800", "A" * 1_000_000, "%%%"])
def test_a_seal_with_more_behind_it_is_refused(more: str) -> None:
    with pytest.raises(UntranslatableError, match="its MAC is wrong"):
        seals().open(SEALED + more, "f")


def test_an_opened_block_that_is_no_reasoning_is_left_out() -> None:
    opening = seals()
    assert opening.open(opening.seal("messages", {"role": "system"}), "f") is None
    assert opening.left_out == ["f (reasoning)"]


def test_a_block_of_another_dialect_is_left_out() -> None:
    opening = seals()
    assert opening.native("responses", SEALED, "f") is None
    assert opening.native("messages", SEALED, "g") == BLOCK
    assert opening.left_out == ["f (reasoning)"]


def test_the_place_is_the_provider_and_the_origin_and_is_not_shown() -> None:
    keys = SealKeys((NEW,), {"VENDOR_A": "https://a.test/x", "VENDOR_B": "https://b.test"})
    assert keys.place(TARGET) == "VENDOR_B_COMPATIBLE https://a.test"
    assert keys.place(Target("VENDOR_A", secret_id="s")) == "VENDOR_A https://a.test"
    assert keys.place(Target("PLATFORM", model_id="mdl_1")) == "PLATFORM mdl_1"
    assert "a.test" not in SEALED


@pytest.mark.parametrize(
    ("body", "has"),
    [
        ({"input": [{"type": "reasoning"}]}, True),
        ({"input": ["x", {"type": "message"}]}, False),
        ({"messages": [{"reasoning_details": []}]}, True),
        ({"messages": ["x", {"content": [{"type": "thinking"}]}]}, True),
        ({"messages": [{"content": [{"type": "text"}, "x"]}, {"content": "text"}]}, False),
        ({}, False),
    ],
)
def test_bodies_that_may_hold_seals_are_told_by_their_turns(body: dict[str, Any], has: bool) -> None:
    assert has_reasoning(body) is has
