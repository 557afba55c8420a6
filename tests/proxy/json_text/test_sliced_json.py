"""Parsing in slices returns what orjson returns, or refuses what orjson refuses, wherever the slices are cut."""

import random
from typing import Any

import orjson
import pytest

from proxy.json_text import sliced_json
from proxy.json_text.segmented_body import PIECE_BYTES, SegmentedBody
from proxy.json_text.sliced_json import PROBE_BYTES, SHORT_BYTES, parse_in_slices
from proxy.time_slices import at_once

SOUND = [
    b"a",
    b"\\n",
    b'\\"',
    b"\\\\",
    b"\\u0061",
    b"\\ud83d\\ude00",
    "é".encode(),
    "漢".encode(),
    "😀".encode(),
    b"x" * 99,
]
UNSOUND = [b"\\ud83d", b"\\ude00", b"\xff", b"\x80", b"\x01", b"\\x", b"\\u00g0", b"\n", b'"', b"\\"]


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a short text have many cuts, and never parse it at once."""
    monkeypatch.setattr(sliced_json, "AT_ONCE_BYTES", -1)
    monkeypatch.setattr(sliced_json, "PIECE_BYTES", PROBE_BYTES + 13)


def parsed_in_slices(raw: bytes) -> Any:
    parsed, outline = at_once(parse_in_slices(raw))
    assert outline is not None
    assert bytes(outline.restored_body(outline.text)) == raw
    assert len(outline.restored_body(outline.text)) == len(raw)
    assert b"".join(outline.restored_body(outline.text).pieces(100)) == raw
    return outline.restored_value(parsed, len(raw))


def or_refused(read: Any, raw: bytes) -> Any:
    try:
        return read(raw)
    except orjson.JSONDecodeError:
        return "refused"


@pytest.mark.parametrize("unsound", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_parses_what_orjson_parses(seed: int, unsound: bool) -> None:
    rng = random.Random(seed)
    refusals = 0
    for _ in range(150):
        units = rng.sample(SOUND, rng.choice([1, 2, 10]))

        def string(units: list[bytes] = units) -> bytes:
            inside = rng.choices(units, k=rng.choice([0, 3, 200, 900]))
            if unsound and rng.random() < 0.2:
                inside.insert(rng.randrange(len(inside) + 1), rng.choice(UNSOUND))
            return b'"%b"' % b"".join(inside)

        raw = b'{"model":%b,"input":[%b,{%b: 1.5, "b":%b}]}' % (string(), string(), string(), string())
        expected = or_refused(orjson.loads, raw)
        assert or_refused(parsed_in_slices, raw) == expected
        refusals += expected == "refused"
    assert 0 < refusals < 150 if unsound else not refusals


@pytest.mark.parametrize("unit", SOUND)
@pytest.mark.parametrize("lead", range(8))
def test_no_cut_splits_a_character_or_an_escape(unit: bytes, lead: int) -> None:
    raw = b'["%b%b"]' % (b"x" * lead, unit * 500)
    assert parsed_in_slices(raw) == orjson.loads(raw)


@pytest.mark.parametrize("size", [0, 1, SHORT_BYTES - 1, SHORT_BYTES, SHORT_BYTES + 1])
def test_parser_sees_only_short_strings(size: int) -> None:
    _, outline = at_once(parse_in_slices(b'{"a":"%b"}' % (b"x" * size)))
    assert outline is not None
    assert len(outline.text) < SHORT_BYTES + 20


@pytest.mark.parametrize(
    "url",
    [
        b"data:image/png;base64,%b",
        b"data:image\\/png;base64,%b",
        b"https://example.com/%b",
        b"https:\\/\\/example.com\\/%b",
        b"data:%b",
        b"daylight%b",
        b"http%b",
    ],
)
def test_placeholder_keeps_the_head_of_a_url(url: bytes) -> None:
    raw = b'["%b"]' % (url % (b"abcdefgh" * 100))
    parsed, outline = at_once(parse_in_slices(raw))
    assert outline is not None
    assert len(parsed[0]) < 200
    head = orjson.loads(b'"%b"' % url.partition(b"%b")[0])
    has_head = parsed[0].startswith(head.partition(",")[0].partition("example")[0])
    assert has_head == (b"," in url or b"/" in url)
    assert parsed_in_slices(raw) == orjson.loads(raw)


@pytest.mark.parametrize(
    "raw", [b"", b" ", b'"', b'"abc', b'{"a":"', b'{"a":"\\', b'{"a":"\\"', b"[", b'{"a":"b"', b"\xff"]
)
def test_truncated_text_is_refused(raw: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        at_once(parse_in_slices(raw))


def test_work_on_many_placeholders_and_long_segments_yields() -> None:
    raw = b"[%b]" % b",".join([b'"%b"' % (b"x" * 200)] * 1_000)
    parsed, outline = at_once(parse_in_slices(raw))
    assert outline is not None
    filled = outline.restored_body(orjson.dumps(parsed))
    assert sum(1 for _ in filled.measure_in_slices()) >= 10
    assert len(filled) == len(raw)
    long = SegmentedBody(raw, memoryview(raw * 10), raw)
    assert sum(1 for _ in long.join_in_slices()) >= len(long) // PIECE_BYTES
    assert at_once(long.join_in_slices()) == raw * 12
