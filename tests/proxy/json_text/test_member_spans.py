"""The members of a text are those that a parser finds, wherever the text is cut into pieces."""

import json
import random
from typing import Any

import orjson
import pytest

from proxy.json_text import member_spans as spans
from proxy.json_text.json_bounds import MAX_MEMBERS, TooManyValuesError
from proxy.json_text.member_spans import LONGEST_NAME_BYTES, PIECE_BYTES, member_spans
from proxy.time_slices import at_once

PARTS = (
    *(b"a", b"\\n", b'\\"', b"\\\\", b"\\u0061", b"\\ud83d\\ude00", b",", b"[", b"}", b":"),
    *("é".encode(), "漢".encode(), b"x" * 30, b"x" * 300),
)
SCALARS = (b"1", b"-0.5e3", b"null", b"true", b'""', b"[]", b"{}", b" 12 ")


def pairs(text: bytes) -> Any:
    return json.loads(text, object_pairs_hook=lambda members: members)


def found_in(raw: bytes) -> list[tuple[str, Any]]:
    return [(name, pairs(raw[start:end])) for name, start, end in at_once(member_spans(raw))]


def an_object(rng: random.Random, depth: int = 0) -> bytes:
    space = rng.choice([b"", b" ", b"\n  "])
    members = [
        space + b'"%b"' % rng.choice(PARTS) + space + b":" + space + a_value(rng, depth + 1)
        for _ in range(rng.choice([0, 1, 2, 8]))
    ]
    return b"{" + space + b",".join(members) + space + b"}"


def a_value(rng: random.Random, depth: int) -> bytes:
    kind = rng.random()
    if depth > 6 or kind < 0.3:
        return rng.choice(SCALARS)
    if kind < 0.5:
        return b'"%b"' % b"".join(rng.choices(PARTS, k=rng.choice([0, 1, 3, 40])))
    if kind < 0.75:
        return b"[%b]" % b" ,".join(a_value(rng, depth + 1) for _ in range(rng.choice([0, 1, 2, 8])))
    return an_object(rng, depth)


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 16, 200, 2000])
def test_finds_what_a_parser_finds(piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "PIECE_BYTES", piece_bytes)
    rng = random.Random(piece_bytes)
    for _ in range(20 + 10 * min(piece_bytes, 20)):
        raw = rng.choice([b"", b" \n"]) + an_object(rng) + rng.choice([b"", b" \n"])
        assert found_in(raw) == pairs(raw)


@pytest.mark.parametrize(
    "large",
    [
        b"[" + b"[1,2]," * PIECE_BYTES + b"{}]",
        b'"' + b'\\"' * PIECE_BYTES + b'"',
        b'"' + b"\\\\" * PIECE_BYTES + b'"',
        b"[" * 1000 + b'{"c":1}' + b"]" * 1000,
        b"[" + (b"[" * 90 + b"]" * 90 + b",") * 100 + b"1]",
        b"9" * PIECE_BYTES,
        b" " * 3 * PIECE_BYTES + b"1",
    ],
)
def test_large_values_are_passed_over(large: bytes) -> None:
    raw = b'{"a":%b,"b":[2,{"c":3}],"a": %b ,"d":"}"}' % (large, large)
    members = at_once(member_spans(raw))
    assert [(name, raw[start:end].strip()) for name, start, end in members] == [
        ("a", large.strip()),
        ("b", b'[2,{"c":3}]'),
        ("a", large.strip()),
        ("d", b'"}"'),
    ]


def test_long_name_is_cut_off() -> None:
    (member,) = at_once(member_spans(b'{"%b":1}' % (b"n" * 3 * PIECE_BYTES)))
    assert member.name == "n" * (LONGEST_NAME_BYTES - 1)
    (member,) = at_once(member_spans(orjson.dumps({"é" * 400: 1})))
    assert member.name == "é" * 400


def test_members_are_bounded() -> None:
    raw = orjson.dumps({str(number): [] for number in range(MAX_MEMBERS)})
    assert len(at_once(member_spans(raw))) == MAX_MEMBERS
    with pytest.raises(TooManyValuesError, match="1000 members"):
        at_once(member_spans(raw[:-1] + b',"more":1}'))


def test_time_is_spent_in_many_steps() -> None:
    raw = b'{"a":"%b"}' % (b"x" * 100 * PIECE_BYTES)
    assert sum(1 for _ in member_spans(raw)) >= 100
