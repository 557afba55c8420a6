"""The members that are found are those that a parser finds, wherever the text is cut, and no other byte changes."""

import json
import random
from typing import Any

import orjson
import pytest

from proxy.json_text import member_scanner as scanning
from proxy.json_text.member_scanner import MAX_VALUE_BYTES, UNREAD, MemberScanner, Wanted
from tests.proxy.json_text.test_member_spans import an_object

RENAMED = b'"acme/fast"'
WANTED = Wanted(frozenset(("usage", "type", "a")), "response", RENAMED)


def scanned(raw: bytes, members: Wanted = WANTED, step: int = 1 << 20) -> tuple[bytes, list[Any]]:
    values: list[Any] = []
    scanner = MemberScanner(members, values.append)
    passed = b"".join(scanner.feed(raw[at : at + step]) for at in range(0, len(raw), step))
    return passed + scanner.end(), values


def in_random_pieces(raw: bytes, rng: random.Random) -> tuple[bytes, list[Any]]:
    values: list[Any] = []
    scanner = MemberScanner(WANTED, values.append)
    passed = b""
    while raw:
        size = rng.choice([1, 2, 3, 10, 100])
        passed += scanner.feed(raw[:size])
        raw = raw[size:]
    return passed + scanner.end(), values


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 16, 200, 2000])
def test_finds_what_a_parser_finds(piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "PIECE_BYTES", piece_bytes)
    rng = random.Random(piece_bytes)
    for _ in range(200):
        inner = an_object(rng)
        raw = b'{"x":%b,"a":%b,"response": {"y":[%b], "usage" :%b }}' % (an_object(rng), inner, an_object(rng), inner)
        passed, (value,) = in_random_pieces(raw, rng)
        assert passed == raw
        assert value == {"a": json.loads(inner), "response": {"usage": json.loads(inner)}}


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 16, 200])
@pytest.mark.parametrize("value", [b'"gpt-x"', b'"q\\"u\\\\"', b"null", b"{ }", b'[{"model":"own"}]', b'""', b"12"])
def test_model_is_replaced_at_its_places_alone(value: bytes, piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "PIECE_BYTES", piece_bytes)
    form = b'{"own":[{"model":"own"}],"model": %b,"\\u006dodel":%b,"response":{"o":{"model":"own"},\n"model" : %b}}'
    assert scanned(form % (value, value, value), step=3)[0] == form % (RENAMED, RENAMED, RENAMED)


@pytest.mark.parametrize(
    "raw",
    [
        b'\xef\xbb\xbf{"usage":{"n":1}}',
        b'{"logprob":NaN,"usage":{"n":1},"low":-Infinity}',
        b'{"text":"\\ud800","usage":{"n":1}}',
        b'{"text":"\xed\xa0\x80\x00\x01","usage":{"n":1}}',
        b'{"usage":{"n":1},"text":"cut off he',
        b'{"usage":{"n":1},"text":"cut off\\',
        b'[{"usage":{"n":1}}]',
        b'{"usage":{"n":1}}\x00 trailing',
        b'{"text":"{\\"usage\\":{\\"n\\":2}}","x":{"usage":{"n":3}},"usage":{"n":1},"y":[{"usage":{"n":4}}]}',
        b'{"usage":{"n":9},"usage":{"n":1}}',
    ],
)
@pytest.mark.parametrize("step", [1, 5, 1000])
def test_usage_is_found_where_a_strict_parser_gives_up(raw: bytes, step: int) -> None:
    assert scanned(raw, step=step) == (raw, [{"usage": {"n": 1}}])


def test_each_outermost_object_is_told() -> None:
    objects = [{"usage": 1}, {"x": 2}, {"a": 3, "model": "m"}]
    expected = [{"usage": 1}, {}, {"a": 3}]
    lines = b"\n".join(map(orjson.dumps, objects))
    assert scanned(lines) == (lines.replace(b'"m"', RENAMED), expected)
    assert scanned(orjson.dumps(objects))[1] == expected


def test_large_value_is_told_but_not_kept() -> None:
    raw = orjson.dumps({"usage": "x" * MAX_VALUE_BYTES, "a": 1})
    assert scanned(raw, step=1000) == (raw, [{"usage": UNREAD, "a": 1}])


@pytest.mark.parametrize(
    "raw", [b"", b"}}}]]", b'{"', b'{"a":', b"[[[", b"{{{", b'{"a":}', b'{:::,,"usage":1', b"\\\\\\"]
)
def test_nonsense_passes_unchanged(raw: bytes) -> None:
    assert scanned(raw, step=1)[0] == raw


@pytest.mark.parametrize(
    ("raw", "values"),
    [
        (b'{"usage":{"n":1}', [{"usage": {"n": 1}}]),
        (b'[{"usage":{"n":1}', [{"usage": {"n": 1}}]),
        (b'{"response":{"usage":{"n":1}', [{"response": {"usage": {"n": 1}}}]),
        (b'{"type":"x"', [{"type": "x"}]),
        (b'{"usage":{"n":1', []),
        (b'{"type":"x', []),
        (b'{"usage":12', []),
    ],
)
@pytest.mark.parametrize("step", [1, 1 << 20])
def test_value_behind_which_a_text_is_cut_off_is_found_if_it_is_complete(
    raw: bytes, values: list[Any], step: int
) -> None:
    assert scanned(raw, step=step) == (raw, values)
