"""A text that arrives in chunks is taken as JSON exactly if orjson takes the whole of it."""

import random
from time import thread_time

import orjson
import pytest

from proxy.json_text import streamed_json
from proxy.json_text.streamed_json import MAX_UNCUT_BYTES, PIECE_BYTES, StreamedJson
from proxy.time_slices import at_once

PARTS = (
    *(b"a", b"\\n", b'\\"', b"\\\\", b"\\u0061", b"\\ud83d\\ude00", b",", b"[", b"}"),
    *("é".encode(), "漢".encode(), "😀".encode(), b"x" * 30, b"x" * 300),
)
SCALARS = (b"1", b"-0.5e3", b"null", b"true", b'""', b"[]", b"{}", b" 12 ")
FAULTS = (
    *(b"\\ud83d", b"\\ude00", b"\xff", b"\x80", b"\x01", b"\\x", b"\n", b'"', b"\\"),
    *(b",", b"[", b"]", b"{", b"}", b":", b"0", b" ", b"1e999"),
)


def is_json(*chunks: bytes) -> bool:
    checked = StreamedJson()
    for chunk in chunks:
        at_once(checked.feed(chunk))
    return checked.is_json()


def orjson_takes(raw: bytes) -> bool:
    try:
        orjson.loads(raw)
    except orjson.JSONDecodeError:
        return False
    return True


def cut(raw: bytes, rng: random.Random) -> list[bytes]:
    chunks = []
    while raw:
        size = rng.choice([1, 7, 150, 1000])
        chunks.append(raw[:size])
        raw = raw[size:]
    return chunks


def value(rng: random.Random, depth: int = 0) -> bytes:
    kind = rng.random()
    if depth > 6 or kind < 0.3:
        return rng.choice(SCALARS)
    if kind < 0.5:
        return b'"%b"' % b"".join(rng.choices(PARTS, k=rng.choice([0, 1, 3, 40])))
    space = rng.choice([b"", b" ", b"\n  "])
    size = rng.choice([0, 1, 2, 8])
    values = [value(rng, depth + 1) for _ in range(size)]
    if kind < 0.75:
        return b"[%b]" % (space + b",").join(values)
    return b"{%b}" % b",".join(b'"%b"%b:%b' % (rng.choice(PARTS), space, one) for one in values)


def damaged(raw: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(raw) + 1)
    return rng.choice([raw[:at], raw[:at] + raw[at + 1 :], raw[:at] + rng.choice(FAULTS) + raw[at:]])


@pytest.mark.parametrize("long_bytes", [40, 150])
@pytest.mark.parametrize("seed", range(5))
def test_takes_what_orjson_takes(seed: int, long_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_json, "PIECE_BYTES", 200)  # a short text has many cuts
    monkeypatch.setattr(streamed_json, "LONG_BYTES", long_bytes)
    rng = random.Random(seed)
    valid_count = 0
    for number in range(1200):
        raw = value(rng)
        for _ in range(number % 3):
            raw = damaged(raw, rng)
        expected = orjson_takes(raw)
        assert is_json(*cut(raw, rng)) == expected, raw
        valid_count += expected
    assert 400 < valid_count < 1000


LONG = b"x" * PIECE_BYTES


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b" ", b"1", b" 1 ", b'"', b"[1,2", b"]", b"1,2", b'{"a":1}}', b"[1]]", b"[}", b"{]"),
        b'"%b"' % LONG,
        b'"%b", "b"' % LONG,
        b'{"%b":"%b","b":["%b"]}' % (LONG, LONG, LONG),
        b'{"%b" "%b"}' % (LONG, LONG),
        b'["%b' % LONG,
        b'["%b"' % LONG,
        b'["%b\\"]' % LONG,
        b'["%b\\\\"]' % LONG,
        b'["%b\n"]' % LONG,
        b'["%b\\ud800"]' % LONG,
        b'["%b"] ["%b"]' % (LONG, LONG),
        b'["%b"],["%b"]' % (LONG, LONG),
        b'["%b",]' % LONG,
        b'[,"%b"]' % LONG,
        b'{"a":"%b",}' % LONG,
        b'{"a":"%b","b"}' % LONG,
        b'["%b", NaN]' % LONG,
        b"[" + b"1," * PIECE_BYTES + b"1]",
        b"[" + b"1," * PIECE_BYTES + b",1]",
        b"[" + b'{"a":[1,{"b":2}],"c":3},' * PIECE_BYTES + b"{}]",
        b"[" + b'{"a":[1,{"b":2}],"c":3},' * PIECE_BYTES + b"}]",
        b"[" * 1000 + b"1," * PIECE_BYTES + b"1" + b"]" * 1000,
        b'{"a":' * 1000 + b"[" + b"1," * PIECE_BYTES + b"1]" + b"}" * 1000,
        b"[" * 2000 + b"1," * PIECE_BYTES + b"1" + b"]" * 2000,
        b"\\" * 3 * PIECE_BYTES,
        b'["' + b"\\" * 6 * PIECE_BYTES + b'"]',
        b'["' + b"\\" * (6 * PIECE_BYTES + 1) + b'"]',
        b'["' + b"\x80" * 3 * PIECE_BYTES + b'"]',
        b'[1,\\"a",' + b'"a",' * PIECE_BYTES + b"1]",
    ],
)
def test_long_text_is_judged_like_a_short_one(raw: bytes) -> None:
    assert is_json(raw) == orjson_takes(raw)
    assert is_json(raw[: PIECE_BYTES - 1], raw[PIECE_BYTES - 1 :]) == orjson_takes(raw)


def test_endless_white_space_and_numbers_are_not_taken() -> None:
    assert is_json(b"[" + b" " * (MAX_UNCUT_BYTES // 2) + b"1]")
    assert not is_json(b"[" + b" " * 3 * MAX_UNCUT_BYTES + b"1]")
    assert not is_json(b"[0." + b"0" * 3 * MAX_UNCUT_BYTES + b"1]")


@pytest.mark.parametrize("unit", [b'"', b"\\", b"[", b"{", b'["', b'{"":', b"[]", b" ", b"9", b"a", b"\x80", b'"\\"",'])
def test_time_is_linear_whatever_is_sent(unit: bytes) -> None:
    def cpu_s(size: int) -> float:
        checked = StreamedJson()
        start_s = thread_time()
        at_once(checked.feed(b"[" + unit * (size // len(unit))))
        checked.is_json()
        return thread_time() - start_s

    quick = min(cpu_s(200_000) for _ in range(3))
    assert min(cpu_s(1_600_000) for _ in range(3)) < 8 * 4 * quick + 0.01


def test_nothing_is_kept_of_what_was_validated() -> None:
    for unit in (b'"a",', b'{"a":[1,2]},', b'"%b",' % LONG):
        checked = StreamedJson()
        at_once(checked.feed(b"[" + unit * (20 * PIECE_BYTES // len(unit))))
        buffered_bytes = len(checked._buffer) + len(checked._before_string or b"")
        assert buffered_bytes < 2 * PIECE_BYTES + len(unit)
