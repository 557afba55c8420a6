"""What is counted in a body before it is parsed: values, and nothing that stands in a text."""

import json

import pytest

from proxy import extent
from proxy.extent import MAX_VALUES, is_within_bounds

PAD = "x" * extent.SMALL_BYTES


@pytest.mark.parametrize(
    "value",
    [
        ["a"] * (MAX_VALUES - 10),
        ["\\", '"', '\\"', "[,{"] * 10_000,
        "0,1,2," * MAX_VALUES,
        '{"a": [1, 2, "b\\\\"]}, ' * 100_000,
        '\\"' * MAX_VALUES,
    ],
    ids=["values", "odd texts", "a table", "JSON in a text", "escapes"],
)
def test_what_real_requests_hold_passes(value: object) -> None:
    assert is_within_bounds(json.dumps({"model": "m", "pad": PAD, "value": value}).encode())


@pytest.mark.parametrize("one", ["0", "{}", "[]", '""', '"a":0', '{"":1}', "[[]]"])
def test_more_values_than_that_do_not(one: str) -> None:
    assert not is_within_bounds(f'{{"pad":"{PAD}","a":[{",".join([one] * (MAX_VALUES + 1))}]}}'.encode())


def test_a_small_body_is_not_even_counted() -> None:
    assert is_within_bounds(b"[" * extent.SMALL_BYTES)
