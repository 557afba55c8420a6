"""However long its strings are, and whatever stands in them, a text means what orjson says, or is refused as there."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy import long_strings
from proxy.long_strings import LONG_BYTES, PIECE, SHORT_STRINGS, loads

LONG = b"a picture, say" * (LONG_BYTES // 7)


def said(read: Any, raw: bytes) -> tuple[bool, Any]:
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
def test_a_text_means_what_orjson_says(value: bytes, after: bytes, before: bytes) -> None:
    raw = before + value + after
    assert said(loads, raw) == said(orjson.loads, raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": "%b", "b": "x", "a": "%b"}' % (LONG, LONG[::-1]),
        b'{"a": "%b", "a": "x", "b": "%b"}' % (LONG, LONG[::-1]),
        b'{"%b": "%b"}' % (LONG, LONG),
        b'[%b"%b"]' % (b'"x",' * 2 * SHORT_STRINGS, LONG * 4),
        b'"%b"' % LONG,
        b'["%b", %b]' % (LONG, b"0," * LONG_BYTES + b"0"),
        b'["%b' % LONG,
        b'["%b\\"%b"]' % (LONG, LONG),
    ],
    ids=["again later", "taken back", "a key", "after many", "alone", "among much else", "broken off", "with a quote"],
)
def test_where_long_strings_stand(raw: bytes) -> None:
    assert said(loads, raw) == said(orjson.loads, raw)


def test_a_control_character_is_found_wherever_it_stands() -> None:
    for at in (0, PIECE - 1, PIECE, PIECE + 1):
        text = bytearray(b"x" * (2 * PIECE))
        text[at] = 0x1F
        with pytest.raises(orjson.JSONDecodeError):
            loads(b'["%b"]' % bytes(text))


def test_the_parser_is_spared_long_plain_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or all of the above would hold for a function that does nothing."""
    parsed: list[int] = []

    def watched(raw: bytes) -> Any:
        parsed.append(len(raw))
        return orjson.loads(raw)

    class Orjson:
        loads = staticmethod(watched)
        dumps = staticmethod(orjson.dumps)

    monkeypatch.setattr(long_strings, "orjson", Orjson)
    raw = b'{"model": "m", "said": ["what \\"is\\" it\\n", "%b", {"and": "%b"}]}' % (LONG, LONG)
    assert loads(raw) == orjson.loads(raw)
    assert parsed == [pytest.approx(len(raw) - 2 * len(LONG), abs=100)]
