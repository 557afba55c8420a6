"""Numbers keep their spelling where orjson would round them; all other JSON is read as orjson reads it."""

import json
from decimal import Decimal

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.json_text.exact_numbers import exact_value, loads_exactly

DIGITS = st.text("0123456789", min_size=1, max_size=40)
NUMBERS = st.builds(
    lambda sign, whole, fraction, exponent: f"{sign}{int(whole)}{fraction}{exponent}",
    st.sampled_from(["", "-"]),
    DIGITS,
    st.just("") | DIGITS.map(".{}".format),
    st.just("") | st.integers(-400, 400).map("e{}".format) | st.integers(0, 9).map("E+{}".format),
)


@given(NUMBERS, st.sampled_from(['{"a":%s}', "[%s]", "%s", '{"a": {"b": [1, %s ]}}', '["1e5",%s]']))
@example("1e400", '{"a":%s}')
@example("123456789.123456789", "[%s]")
def test_numbers_are_written_with_the_value_that_was_read(number: str, form: str) -> None:
    text = form % number
    output = orjson.dumps(loads_exactly(text))
    assert json.loads(output, parse_float=Decimal) == json.loads(text, parse_float=Decimal)


@pytest.mark.parametrize(
    "text", ["NaN", '{"a":-Infinity,"b":1e400}', '{"a":"\\ud800","b":1e400}', '{"a":1e400', "01e400"]
)
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        loads_exactly(text)


@pytest.mark.parametrize("text", [b'{"a":"1e5 123456789012345678901234567890","b":1.5}', b'{"a":1,"b":[0.1]}'])
def test_values_without_such_numbers_are_equal(text: bytes) -> None:
    value = orjson.loads(text)
    assert exact_value(value, text) == value


def test_deep_nesting_is_read_as_ever() -> None:
    text = b"[" * 900 + b"1e400" + b"]" * 900
    with pytest.raises(orjson.JSONDecodeError):
        loads_exactly(text)
    deep = b"[" * 900 + b"1e5" + b"]" * 900
    assert loads_exactly(deep) == orjson.loads(deep)
