"""Reading a JSON array item by item, with numbers kept as they were written."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.exact_json import array_items, items_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), VALUES), st.lists(VALUES, max_size=6), st.sampled_from([None, 0, 3]))
def test_items_equal_those_of_a_full_parse(others: dict[str, Any], items: list[Any], indent: int | None) -> None:
    text = json.dumps(others | {"events": items}, indent=indent)
    assert list(items_of(text, "events")) == items
    assert list(array_items(json.dumps(items, indent=indent))) == items


@pytest.mark.parametrize("number", ["1" * 25, "1.10", "1e400", "-0.0", "12345678901234567890"])
def test_items_keep_numbers_as_written(number: str) -> None:
    text = f'{{"after": null, "events": [{{"a": {number}}}]}}'
    assert [orjson.dumps(item) for item in items_of(text, "events")] == [b'{"a":%s}' % number.encode()]
