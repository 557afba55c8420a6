"""JSON that a strict parser refuses is read as a lenient client reads it."""

import codecs
import math
from typing import Any

import orjson
import pytest

from proxy.json_text.lenient_json import encoding_of, parse_leniently, values_that_came

VALUE = {"text": "say “hi” 😀", "n": [1, {"x": "y"}]}
RAW = orjson.dumps(VALUE)


@pytest.mark.parametrize("raw", [RAW, codecs.BOM_UTF8 + RAW, b" \n" + RAW + b"\0\0", RAW + b" trailing"])
def test_what_stands_around_the_value_does_not_matter(raw: bytes) -> None:
    assert parse_leniently(raw) == VALUE


@pytest.mark.parametrize("name", ["utf-16", "utf-32", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_other_encodings_are_recognized(name: str) -> None:
    raw = RAW.decode().encode(name)
    encoding = encoding_of(raw)
    assert encoding.mark + RAW.decode().encode(encoding.name) == raw
    assert parse_leniently(raw) == VALUE


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b'{"a":-Infinity}', {"a": -math.inf}),
        (b'["\\ud800","\\uDC00x","\\ud83d\\ude00","\\\\ud800"]', ["\ufffd", "\ufffdx", "😀", "\\ud800"]),
        (b'["\xff\xfe","a\x00b\nc"]', ["\ufffd\ufffd", "a\x00b\nc"]),
    ],
)
def test_odd_values_are_read(raw: bytes, value: Any) -> None:
    assert parse_leniently(raw) == value


@pytest.mark.parametrize("raw", [b"", b"nothing", b'{"a":', b'{"a":1}\n{"a":2}', b"{}{}", b"[" * 100_000])
def test_what_is_no_single_value_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"no JSON value|more than one value"):
        parse_leniently(raw)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b'{"a":"hello wor', {"a": "hello wor"}),
        (b'{"a":[{"b":"hello \\u00e', {"a": [{"b": "hello "}]}),
        (b'{"a":[{"b":"hello \\', {"a": [{"b": "hello "}]}),
        (b'{"a":1,"b":{"c":2,"d"', {"a": 1, "b": {"c": 2}}),
        (b'{"a":1,"b":tru', {"a": 1}),
        (b'[{"a":1},', [{"a": 1}]),
        (RAW, VALUE),
    ],
)
def test_text_that_is_cut_off_is_read_as_far_as_it_came(raw: bytes, value: Any) -> None:
    assert values_that_came(raw) == [value]


def test_each_value_of_a_sequence_is_read() -> None:
    assert values_that_came(b'{"a":1}\n{"a":NaN}\n\n["b"]\0{"a":"cut o')[::2] == [{"a": 1}, ["b"]]
    assert values_that_came(b'{"a":1}\n{"a":"cut o') == [{"a": 1}, {"a": "cut o"}]


def test_what_is_too_deep_or_no_json_gives_no_value() -> None:
    assert values_that_came(b"[1," * 100_000) == []
    assert values_that_came(b"<html>") == []
