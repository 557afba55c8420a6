import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.middle.gathering import Budget, Gathered, ObjectProgress
from proxy.errors import UpstreamCutError

VALUES = st.recursive(st.text(max_size=6) | st.integers(0, 99) | st.none(), lambda inner: st.lists(inner, max_size=3))


def test_gathered_pieces_are_one_text() -> None:
    text = Gathered(Budget())
    text.add("a")
    text.add("b")
    assert text.text() == text.text() == "ab"


def test_texts_of_one_answer_share_their_bound() -> None:
    budget = Budget(3)
    Gathered(budget).add("ab")
    with pytest.raises(UpstreamCutError, match="too large"):
        Gathered(budget).add("cd")


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=4), st.lists(st.integers(1, 7), max_size=40))
def test_object_is_complete_at_its_last_character_alone(value: dict[str, object], sizes: list[int]) -> None:
    text = orjson.dumps(value).decode()
    progress = ObjectProgress()
    while text:
        size = sizes.pop() if sizes else 1
        progress.add(text[:size])
        text = text[size:]
        assert progress.is_complete == (not text)


@pytest.mark.parametrize("text", ["", "1", "true", '"}"', "[1", '{"a":"\\"}'])
def test_other_text_is_no_complete_object(text: str) -> None:
    progress = ObjectProgress()
    progress.add(text)
    assert not progress.is_complete
