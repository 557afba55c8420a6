"""An edit must equal re-encoding and leave every other byte unchanged."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.json_text import json_edit
from proxy.json_text.json_edit import (
    Replacement,
    edit_member,
    edit_members,
    find_member,
    remove_member,
    value_end,
    walk_members,
)
from proxy.json_text.segmented_body import SegmentedBody
from proxy.json_text.sliced_json import AT_ONCE_BYTES, parse_in_slices
from proxy.time_slices import at_once

NAMES = st.sampled_from(["model", "usage", "mod\\u0065l", "m", 'say \\"model', "", "é", "stream_options", "model\\\\"])
SPACE = st.sampled_from(["", " ", "\n", "\t ", "\r\n"])
SCALARS = st.sampled_from(
    ['"model"', '"a,\\"model\\":\\"x\\""', "1", "-0.5e3", "null", "true", '"}{]["', '"\\u00e9\\\\"', '""']
)


@st.composite
def objects(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    pairs = draw(st.lists(st.tuples(NAMES, values), max_size=5))
    body = ",".join(f'{draw(SPACE)}"{name}"{draw(SPACE)}:{draw(SPACE)}{value}{draw(SPACE)}' for name, value in pairs)
    return f"{{{body or draw(SPACE)}}}"


@st.composite
def arrays(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    return f"[{','.join(draw(st.lists(values, max_size=3)))}]"


VALUES = st.recursive(SCALARS, lambda inner: objects(inner) | arrays(inner), max_leaves=8)
DOCUMENTS = st.tuples(SPACE, objects(VALUES), SPACE).map("".join).map(str.encode)
TARGETS = st.sampled_from(["model", "usage", "stream_options", "é", "absent"])


@given(DOCUMENTS, st.dictionaries(TARGETS, st.sampled_from(["x/y", None, {"a": [1]}]), max_size=3))
def test_edit_equals_reencoding(raw: bytes, changes: dict[str, Any]) -> None:
    parsed = orjson.loads(raw)
    edited = edit_members(raw, parsed, {name: orjson.dumps(value) for name, value in changes.items()})
    assert orjson.loads(bytes(edited)) == parsed | changes


PADDINGS = st.sampled_from(
    [
        " " * json_edit.LONG_BYTES,
        '"' + "prose " * json_edit.LONG_BYTES + '"',
        '"x\\n\\""' + ',"x\\n"' * json_edit.LONG_BYTES,
    ]
)


def lengthened(raw: bytes, padding: str, *, first: bool) -> bytes:
    added = (b'"long":[%s]' if padding.strip() else b"%s") % padding.encode()
    comma = b"," if padding.strip() and orjson.loads(raw) else b""
    start = raw.index(b"{") + 1
    end = raw.rindex(b"}")
    return raw[:start] + added + comma + raw[start:] if first else raw[:end] + comma + added + raw[end:]


@given(DOCUMENTS, TARGETS, st.sampled_from(["x/y", None, {"a": [1]}]), PADDINGS, st.booleans())
@settings(max_examples=200)
def test_edit_of_a_long_text_equals_reencoding(raw: bytes, name: str, value: Any, padding: str, first: bool) -> None:
    long = lengthened(raw, padding, first=first)
    assert len(long) > json_edit.LONG_BYTES
    parsed = orjson.loads(long)
    edited = edit_member(long, parsed, name, orjson.dumps(value))
    assert orjson.loads(edited) == parsed | {name: value}
    assert [m for key, m in walk_members(edited) if key == name][1:] == []
    assert bytes(edit_members(long, parsed, {name: orjson.dumps(value)})) == edited


@given(DOCUMENTS, st.dictionaries(TARGETS, st.sampled_from(["x/y", None]), max_size=4), PADDINGS, st.booleans())
@settings(max_examples=200)
def test_several_edits_of_a_long_text_equal_reencoding(
    raw: bytes, changes: dict[str, Any], padding: str, first: bool
) -> None:
    long = lengthened(raw, padding, first=first)
    parsed = orjson.loads(long)
    edited = edit_members(long, parsed, {name: orjson.dumps(value) for name, value in changes.items()})
    assert orjson.loads(bytes(edited)) == parsed | changes
    assert len(edited) == len(bytes(edited))
    for name in changes:
        assert [m for key, m in walk_members(bytes(edited)) if key == name][1:] == []


PROSE = '"' + "prose " * (AT_ONCE_BYTES // 5) + '"'


@given(DOCUMENTS, st.dictionaries(TARGETS, st.sampled_from(["x/y", None]), max_size=4), st.booleans())
@settings(max_examples=200, deadline=None)
def test_edit_of_a_text_parsed_in_slices_equals_reencoding(raw: bytes, changes: dict[str, Any], first: bool) -> None:
    long = lengthened(raw, PROSE, first=first)
    whole = orjson.loads(long)
    parsed, outline = at_once(parse_in_slices(long))
    assert outline is not None
    assert len(outline.key_spans) == len(list(walk_members(long)))
    for name in whole.keys() & {"model", "usage", "stream_options", "m"}:
        span = find_member(long, parsed, name, outline)
        expected = find_member(long, whole, name)
        assert (span is None) == (expected is None)
        if span is not None and expected is not None:
            assert long[span.start : span.end].rstrip() == long[expected.start : expected.end]
    edited = bytes(edit_members(long, parsed, {name: orjson.dumps(value) for name, value in changes.items()}, outline))
    assert orjson.loads(edited) == whole | changes
    for key, member in walk_members(edited):
        assert key not in changes or orjson.loads(edited[member.start : member.end]) == changes[key]


def test_edit_of_a_long_text_copies_no_unchanged_byte() -> None:
    raw = b'{"model":"a","prompt":"%b"}' % (b"x" * json_edit.LONG_BYTES)
    edited = edit_members(raw, orjson.loads(raw), {"model": b'"b"', "n": b"1"})
    assert isinstance(edited, SegmentedBody)
    views = [part for part in edited.text_segments if isinstance(part, memoryview)]
    assert [view.obj for view in views] == [raw] * len(views)
    assert sum(map(len, views)) == len(raw) - len('"a"')
    assert bytes(edited) == b'{"n":1,"model":"b","prompt":"%b"}' % (b"x" * json_edit.LONG_BYTES)


@given(DOCUMENTS, TARGETS)
def test_remove_equals_reencoding(raw: bytes, name: str) -> None:
    parsed = orjson.loads(raw)
    assert orjson.loads(remove_member(raw, parsed, name)) == {
        key: value for key, value in parsed.items() if key != name
    }


@given(DOCUMENTS)
def test_find_agrees_with_the_walk(raw: bytes) -> None:
    hits = [(key, member) for key, member in walk_members(raw)]
    parsed = orjson.loads(raw)
    assert {key for key, _ in hits} == set(parsed)
    for name in ("model", "usage"):
        same = [member for key, member in hits if key == name]
        assert find_member(raw, parsed, name) == (same[0] if len(same) == 1 else None)


@given(DOCUMENTS)
def test_repeated_member_has_one_value_after_an_edit(raw: bytes) -> None:
    edited = bytes(edit_members(raw, orjson.loads(raw), {"model": b'"only/this"'}))
    assert [orjson.loads(edited[m.start : m.end]) for key, m in walk_members(edited) if key == "model"] == ["only/this"]


@given(DOCUMENTS, st.sampled_from(["model", 'a,"model":"x"', "}{][", "é\\", ""]), TARGETS)
def test_replacement_of_a_known_value_equals_reencoding(raw: bytes, before: str, name: str) -> None:
    parsed = orjson.loads(raw)
    edited = Replacement(name, before, b'"x/y"').edited(raw) if name in parsed else None
    if edited is not None:
        assert parsed[name] == before
        assert orjson.loads(edited) == parsed | {name: "x/y"}
        assert edited == edit_member(raw, parsed, name, b'"x/y"')


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"b"}',
        b'{"model" :"a"}',
        b'{"model":"a","x":["model"]}',
        b'{"model":"a","m\\u006Fdel":"a"}',
        b'{"model":"b","x":{"model":"a"}}',
        b'{"model":"b","x":"say \\"model\\":\\"a\\""}',
        b'{"x":"say \\"model":1,"model":"a"}'.replace(b'"x":', b'"x":"y",'),
    ],
)
def test_known_value_is_replaced_only_where_it_is_the_member(raw: bytes) -> None:
    assert Replacement("model", "a", b'"new"').edited(raw) is None


@pytest.mark.parametrize("blank", ["", " "])
def test_known_value_is_replaced_in_both_spellings(blank: str) -> None:
    raw = f'{{"model":{blank}"a","messages":"line\\nof \\"model\\": \\"a\\""}}'.encode()
    assert Replacement("model", "a", b'"new"').edited(raw) == raw.replace(b'"a"', b'"new"', 1)


def test_edit_leaves_all_other_bytes_unchanged() -> None:
    raw = b' { "temperature" : 1.0000 , "model" :\t"a/b", "n":1e400 }'
    parsed = {"temperature": 1.0, "model": "a/b", "n": 0}
    assert edit_members(raw, parsed, {"model": b'"x"'}) == raw.replace(b'"a/b"', b'"x"')


@pytest.mark.parametrize(
    "raw",
    [
        b'{"tools":[{"model":1}],"model":"a","x":{"model":"b"}}',
        b'{"messages":[{"content":"\\"model\\": \\"z\\""}],"model":"a"}',
        b'{"x":"say \\"model":1,"model":"a"}'.replace(b'"x":', b""),
        b'{"mod\\u0065l":"a"}',
        b'{"model":"a","model":"b"}',
        b'{"model":"a","mod\\u0065l":"b"}',
        b'{"mode\\u006c":"a","model":"b"}',
        b'{"\\u006d\\u006F\\u0064\\u0065\\u006C":"a","model":"b"}',
        b'{"model":"a","messages":["\\u00e9\\u0000"],"m\\u006Fdel":"b"}',
        b'{"x":["model",{"y":"model"}],"model":"a"}',
    ],
)
@pytest.mark.parametrize("padding", [b"", b" " * json_edit.LONG_BYTES, b"\n" * json_edit.LONG_BYTES])
@pytest.mark.parametrize("before", [True, False])
def test_edit_finds_the_member_among_lookalikes(raw: bytes, padding: bytes, before: bool) -> None:
    raw = raw.replace(b"{", b"{" + padding, 1) if before else raw[:-1] + padding + b"}"
    parsed = orjson.loads(raw)
    edited = edit_member(raw, parsed, "model", b'"new"')
    assert orjson.loads(edited) == parsed | {"model": "new"}
    assert len([key for key, _ in walk_members(edited) if key == "model"]) == 1


@pytest.mark.parametrize("raw", [b'{"a', b'{"a":', b'{"a":[1,{}', b'"abc', b'{"a":"\\"'])
def test_value_end_of_a_truncated_text_is_an_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match="breaks off"):
        value_end(raw, 0)
