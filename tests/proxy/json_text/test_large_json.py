"""Texts with long strings parse to what orjson returns, or are refused as orjson refuses them."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.json_text import large_json
from proxy.json_text.json_bounds import MAX_CONTAINERS, SMALL_BYTES, is_surely_within_bounds
from proxy.json_text.json_edit import edit_members
from proxy.json_text.large_json import CHECKED_BYTES, LONG_BYTES, MOST_STEPS, PROBE_BYTES, Outline

LONG = b"a picture, say" * (LONG_BYTES // 7)


def read(raw: bytes) -> tuple[Any, Outline | None]:
    result = large_json.parse_with_placeholders(raw)
    assert result is not None
    return result


def loads(raw: bytes) -> Any:
    """Parse, restore the placeholders, and check that text and values equal the original."""
    parsed, outline = read(raw)
    if outline is None:
        return parsed
    assert bytes(outline.restored_body(outline.text)) == raw
    assert {k: v for k, v in parsed.items() if k not in large_json.BULK} == {
        k: v for k, v in orjson.loads(raw).items() if k not in large_json.BULK
    }
    assert parsed.keys() == orjson.loads(raw).keys()
    whole = dict(parsed)
    for name in whole.keys() & large_json.BULK:
        whole[name] = outline.restored_value(whole[name], len(raw))
    return whole


def result_of(read: Any, raw: bytes) -> tuple[bool, Any]:
    try:
        return True, read(raw)
    except orjson.JSONDecodeError:
        return False, None


INSIDES = st.sampled_from(
    [b"", b"short", b'\\"', b"\\\\", b"\\n", b"\\x", "é".encode(), b"\xff", b"\x01", b"\x1f", b"\x7f", b"/", b"\\u0041"]
)
ENDS = st.sampled_from([b"", b"\\", b"\\\\", b'\\"', b"\n"])


@st.composite
def strings(draw: st.DrawFn) -> bytes:
    long = draw(st.sampled_from([b"", LONG, LONG[:1]]))
    return b'"%b%b%b%b"' % (draw(INSIDES), long, draw(INSIDES), draw(ENDS))


SCALARS = st.one_of(strings(), strings(), st.sampled_from([b"1", b"-0.5e3", b"null", b"tru", b"1e400", b""]))
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: b"[%b]" % b",".join(items))
        | st.lists(st.tuples(strings(), inner), max_size=4).map(
            lambda pairs: b"{%b}" % b",".join(b"%b: %b" % pair for pair in pairs)
        )
    ),
    max_leaves=8,
)


@given(VALUES, st.sampled_from([b"", b" ", b"]", b'"', b"\\"]), st.sampled_from([b"", b"\n", b'"']))
@settings(max_examples=300)
def test_parses_what_orjson_parses(value: bytes, after: bytes, before: bytes) -> None:
    raw = before + value + after
    assert result_of(loads, raw) == result_of(orjson.loads, raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": "%b", "b": "x", "a": "%b"}' % (LONG, LONG[::-1]),
        b'{"a": "%b", "a": "x", "b": "%b"}' % (LONG, LONG[::-1]),
        b'{"%b": "%b"}' % (LONG, LONG),
        b'[%b"%b"]' % (b'"x",' * 10 * MOST_STEPS, LONG * 4),
        b'[%b"%b"]' % (b'"x", ["\\n"], ' * 9, LONG * 4),
        b'[%b"%b"]' % (b'"x",' * 9 + b" " * 200 + b'"x",', LONG * 4),
        b'"%b"' % LONG,
        b'["%b", %b]' % (LONG, b"0," * LONG_BYTES + b"0"),
        b'["%b' % LONG,
        b'["%b\\"%b"]' % (LONG, LONG),
    ],
    ids=[
        "again later",
        "taken back",
        "a key",
        "after many",
        "after some",
        "after a gap",
        "alone",
        "among much else",
        "broken off",
        "with a quote",
    ],
)
def test_long_strings_are_found_in_every_position(raw: bytes) -> None:
    assert result_of(loads, raw) == result_of(orjson.loads, raw)


@given(
    st.lists(st.tuples(st.sampled_from([b"model", b"messages", b"mod\\u0065l", b"input", b"metadata"]), VALUES)),
    st.sampled_from([1, 4]),
)
@settings(max_examples=300)
def test_edit_with_placeholders_equals_edit_of_the_whole_text(members: list[tuple[bytes, bytes]], times: int) -> None:
    raw = b"{%b}" % b",".join(b'"%b":%b' % member for member in (*members, (b"input", b'"%b"' % (LONG * times))))
    try:
        parsed, outline = read(raw)
    except orjson.JSONDecodeError:
        return
    if outline is not None:
        changed = bytes(edit_members(raw, parsed, {"model": b'"m"'}, outline))
        assert orjson.loads(changed) == orjson.loads(bytes(edit_members(raw, orjson.loads(raw), {"model": b'"m"'})))


def test_control_character_in_a_long_string_is_refused() -> None:
    for at in (0, CHECKED_BYTES - 1, CHECKED_BYTES, CHECKED_BYTES + 1):
        text = bytearray(b"x" * (2 * CHECKED_BYTES))
        text[at] = 0x1F
        with pytest.raises(orjson.JSONDecodeError):
            loads(b'["%b"]' % bytes(text))


@pytest.mark.parametrize(
    "odd",
    [b"x", b'"', b'","a":"', b'\\"', b"\\", b"\\n", b"\0", b"\x1f", b"\x7f", b"\xff", "é".encode(), b"\\ud800"],
    ids=repr,
)
@pytest.mark.parametrize("at", [0, PROBE_BYTES, CHECKED_BYTES + 9, 3 * CHECKED_BYTES - 1])
def test_prompt_with_an_odd_byte_is_read_as_orjson_reads_it(odd: bytes, at: int) -> None:
    prompt = b"x" * (3 * CHECKED_BYTES)
    raw = b'{"model":"m","messages":[{"content":"%b"}],"max_tokens":64}' % (prompt[:at] + odd + prompt[at:])
    assert result_of(loads, raw) == result_of(orjson.loads, raw)


def test_parser_does_not_see_long_plain_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain `orjson.loads` would pass the tests above."""
    parsed: list[int] = []

    def watched(raw: bytes) -> Any:
        parsed.append(len(raw))
        return orjson.loads(raw)

    class Orjson:
        loads = staticmethod(watched)
        dumps = staticmethod(orjson.dumps)

    monkeypatch.setattr(large_json, "orjson", Orjson)
    raw = b'{"model": "m", "input": ["what \\"is\\" it\\n", "%b", {"and": "%b"}]}' % (LONG, LONG)
    parsed_text, outline = read(raw)
    assert outline is not None
    assert parsed_text["model"] == "m"
    assert parsed == [pytest.approx(len(raw) - 2 * len(LONG), abs=100)]


@pytest.mark.parametrize(
    "raw",
    [
        b'{"metadata": {"result_of": "%b"}}' % LONG,
        b'{"metadata": {"%b": 1}, "input": "%b"}' % (LONG, LONG),
        b'{"model": "%b", "input": "x"}' % (LONG * 2),
        b'{"%b": "x"}' % (LONG * 2),
        b'{"x": %b, "input": "%b"}' % (b"[" * 500 + b"]" * 500, LONG),
    ],
    ids=["a value that is read", "a key in what is read", "the model", "a member", "beside what cannot be written"],
)
def test_members_outside_of_bulk_have_no_placeholders(raw: bytes) -> None:
    parsed, outline = read(raw)
    assert outline is None
    assert parsed == orjson.loads(raw)


BRACKETS = b"[" * (MAX_CONTAINERS + 1)


@pytest.mark.parametrize("name", [b"messages", b"user"])
@pytest.mark.parametrize("more", [b"", b"\\n"], ids=["plain", "escaped"])
def test_inside_of_a_long_string_is_not_counted(name: bytes, more: bytes) -> None:
    raw = b'{"%b":"%b","a":[%b]}' % (name, more + BRACKETS * 8, b"1," * 9 + b"1")
    parsed, outline = read(raw)
    assert (outline is not None) == (name == b"messages" and not more)
    assert parsed["a"] == [1] * 10


@pytest.mark.parametrize("prose", [b"", b'"' + b"prose " * SMALL_BYTES + b'",'])
def test_text_that_may_exceed_the_bounds_is_not_parsed_at_once(prose: bytes) -> None:
    raw = b'{"messages":[%b%b%b]}' % (prose, b"[]," * (MAX_CONTAINERS + SMALL_BYTES // 3), b"1")
    assert large_json.parse_with_placeholders(raw) is None


def test_what_follows_a_long_string_is_counted() -> None:
    raw = b'{"input":"\\n%b","a":[%b1]}' % (LONG * 8, b"[]," * (MAX_CONTAINERS + 1))
    assert len(raw) > SMALL_BYTES
    assert large_json.parse_with_placeholders(raw) is None


def test_bytes_are_counted_where_they_are_rare_and_where_they_are_not() -> None:
    for brackets in (0, 1, MAX_CONTAINERS, MAX_CONTAINERS + 1):
        text = b"x" * SMALL_BYTES + b"[" * (brackets // 2) + b"{" * (brackets - brackets // 2)
        assert is_surely_within_bounds(text) == (brackets <= MAX_CONTAINERS)
