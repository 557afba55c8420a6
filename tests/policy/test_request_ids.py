"""Checks which request ids of callers are taken over."""

import pytest

from policy.request_ids import valid_request_id


@pytest.mark.parametrize("good", ["a", "A-1_~!", "x" * 128])
def test_request_id_of_visible_ascii_is_valid(good: str) -> None:
    assert valid_request_id(good) == good


@pytest.mark.parametrize("bad", [None, "", "x" * 129, "a b", "a\tb", "é", "a\x7f", "a\n"])
def test_other_request_ids_are_not_valid(bad: str | None) -> None:
    assert valid_request_id(bad) is None
