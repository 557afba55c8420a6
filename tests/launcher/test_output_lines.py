"""Output becomes log lines: where they are cut, which level they get, and what a flood costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.output_lines import (
    LINES_PER_S,
    MAX_BATCH_CHARS,
    MAX_BATCH_LINES,
    MAX_HELD_CHARS,
    MAX_HELD_LINES,
    MAX_LINE_CHARS,
    LineBuffer,
    LineCutter,
    LogLine,
    guess_level,
)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("INFO:     Started server process [1]", "INFO"),
        ("2026-11-22 08:00:00,123 - vllm - WARNING - slow", "WARNING"),
        ("[2026-11-22 08:00:00] ERROR in app: no", "ERROR"),
        ("CRITICAL out of memory", "ERROR"),
        ("DEBUG 11-22 08:00:00 loader.py:1] x", "DEBUG"),
        ("error: unknown argument", "ERROR"),
        ("warning: deprecated", "WARNING"),
        ("Traceback (most recent call last):", "ERROR"),
        ('{"time": "…", "level": "error", "message": "x"}', "ERROR"),
        ('{"severity":"WARN"}', "WARNING"),
        ("INFO no ERROR here", "INFO"),
        ("no errors found", "INFO"),
        ("TERRORS", "INFO"),
        ("an ERRORCODE", "INFO"),
        ("loading weights: 10%", "INFO"),
        ("x" * 100 + " ERROR far away", "INFO"),
        ("", "INFO"),
    ],
)
def test_level_is_guessed_only_from_what_a_line_names_near_its_beginning(text: str, level: str) -> None:
    assert guess_level(text) == level


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=30)), st.data())
def test_lines_are_the_same_however_the_bytes_arrive(lines: list[str], data: st.DataObject) -> None:
    raw = "".join(line + data.draw(st.sampled_from(["\n", "\r\n", "\r"])) for line in lines).encode()
    cutter = LineCutter()
    output = list[str]()
    rest = raw
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        output += cutter.feed(rest[:size], 0.0)
        rest = rest[size:]
    output += cutter.flush()
    assert output == [stripped for line in lines if (stripped := line.rstrip())]


def test_long_lines_are_cut_and_bytes_that_are_no_text_replaced() -> None:
    cutter = LineCutter()
    for _ in range(100):
        cutter.feed(b"x" * 10_000, 0.0)
    (line,) = cutter.feed(b"\n", 0.0)
    assert len(line) == MAX_LINE_CHARS
    assert line.endswith("…")
    assert cutter.feed(b"a\0b\xff\n", 0.0) == ["a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"]


def test_a_flood_is_counted_not_kept() -> None:
    cutter = LineCutter()
    assert len(cutter.feed(b"line\n" * (LINES_PER_S + 500), 0.0)) == LINES_PER_S
    assert cutter.feed(b"line\n" * 1000, 0.9) == []
    warning, after = cutter.feed(b"after\n", 1.0)
    assert warning == f"WARNING: 1500 lines left out: more than {LINES_PER_S} in a second"
    assert after == "after"


def line(text: str) -> LogLine:
    return LogLine(1, "INFO", text)


def test_full_buffer_drops_the_oldest_lines() -> None:
    lines = LineBuffer()
    for number in range(MAX_HELD_LINES + 10):
        lines.add(line(str(number)))
    assert (len(lines), lines.dropped, lines.first()[0].message) == (MAX_HELD_LINES, 10, "10")
    for _ in range(MAX_HELD_CHARS // MAX_LINE_CHARS + 1):
        lines.add(line("x" * MAX_LINE_CHARS))
    assert len(lines) <= MAX_HELD_CHARS // MAX_LINE_CHARS


def test_batches_are_bounded_and_stay_until_they_are_sent() -> None:
    lines = LineBuffer()
    for _ in range(MAX_BATCH_LINES + 1):
        lines.add(line("x"))
    batch = lines.first()
    assert len(batch) == MAX_BATCH_LINES
    assert lines.first() == batch
    lines.remove(batch)
    assert len(lines) == 1
    lines.remove(lines.first())
    for _ in range(MAX_BATCH_CHARS // MAX_LINE_CHARS + 1):
        lines.add(line("x" * MAX_LINE_CHARS))
    assert sum(len(one.message) for one in lines.first()) <= MAX_BATCH_CHARS


def test_batch_whose_oldest_lines_were_dropped_meanwhile_is_removed() -> None:
    lines = LineBuffer()
    for number in range(MAX_HELD_LINES):
        lines.add(line(str(number)))
    batch = lines.first()
    for number in range(100):
        lines.add(line(f"new {number}"))
    lines.remove(batch)
    assert lines.first()[0].message == str(MAX_BATCH_LINES)


def test_secrets_are_masked() -> None:
    lines = LineBuffer(("the-key",))
    lines.add(line("key=the-key!"))
    assert lines.first()[0].message == "key=***!"
