"""The output of a node on disk."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainer.edges.local.output_reader import read_output
from trainer.runner.output_log import MAX_LINE_BYTES, STDERR, STDOUT, OutputLog


@contextmanager
def full_disk(directory: Path) -> Iterator[None]:
    """No file may grow beyond what the output has now."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((directory / "output.log").stat().st_size + 1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def lines_of(directory: Path) -> list[tuple[bool, str]]:
    lines = list[tuple[bool, str]]()
    offset = 0
    is_end = False
    while not is_end:
        chunk = read_output(directory, offset, has_ended=True)
        lines += [(is_error, text) for _, is_error, text in chunk.lines]
        offset = chunk.next_offset
        is_end = chunk.is_end
    return lines


def texts(directory: Path) -> list[str]:
    return [text for _, text in lines_of(directory)]


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (b"a\nb\r\nc", ["a", "b", "c"]),
        (b"10%\r20%\r\n", ["10%", "20%"]),
        (b"\n\nx\n", ["", "", "x"]),
        (b"\xff\x00\n", ["\ufffd\x00"]),
        (b"only\r", ["only"]),
    ],
)
@pytest.mark.parametrize("piece", [1, 2, 100])
def test_output_becomes_lines_however_it_is_read(
    tmp_path: Path, printed: bytes, expected: list[str], piece: int
) -> None:
    log = OutputLog(str(tmp_path), [])
    for start in range(0, len(printed), piece):
        log.feed(STDOUT, printed[start : start + piece])
    log.close()

    assert texts(tmp_path) == expected


def test_streams_are_cut_apart_and_told_apart(tmp_path: Path) -> None:
    log = OutputLog(str(tmp_path), [])
    log.feed(STDOUT, b"one ")
    log.feed(STDERR, b"oh\n")
    log.feed(STDOUT, b"two\n")
    log.close()

    assert lines_of(tmp_path) == [(True, "oh"), (False, "one two")]


def test_long_line_is_divided_between_characters(tmp_path: Path) -> None:
    log = OutputLog(str(tmp_path), [])
    text = "x" + "€" * MAX_LINE_BYTES
    log.feed(STDOUT, text.encode() + b"\n")
    log.close()

    assert "".join(texts(tmp_path)) == text
    assert max(len(line.encode()) for line in texts(tmp_path)) <= MAX_LINE_BYTES


def test_full_disk_drops_lines_and_the_next_one_says_how_many(tmp_path: Path) -> None:
    log = OutputLog(str(tmp_path), [])
    log.feed(STDOUT, b"before\n")
    with full_disk(tmp_path):
        log.feed(STDOUT, b"lost\nlost too\n")
        assert log.loss == "2 lines of output were lost: File too large"
    log.feed(STDOUT, b"after\n")
    log.close()

    assert texts(tmp_path) == ["before", "Tollgate: 2 lines of output were lost: File too large", "after"]
    assert log.loss is None


def test_loss_at_the_end_is_known_though_it_could_not_be_written(tmp_path: Path) -> None:
    log = OutputLog(str(tmp_path), [])
    with full_disk(tmp_path):
        log.feed(STDOUT, b"lost\n")
        log.close()

    assert log.loss == "1 lines of output were lost: File too large"
    assert texts(tmp_path) == []


def test_output_beyond_the_bound_is_dropped_and_that_is_said_once(tmp_path: Path) -> None:
    log = OutputLog(str(tmp_path), [], max_bytes=2 * 1024 * 1024)
    for _ in range(5):
        log.feed(STDOUT, b"y" * 999_999 + b"\n")
    log.close()

    assert texts(tmp_path)[-1] == "Tollgate: the node printed 2 MiB; the rest is not kept"
    assert (tmp_path / "output.log").stat().st_size < 2 * 1024 * 1024 + 1000


def test_lines_of_somebody_else_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_bytes(
        b"rubbish\n\n1 9 x\n\xff 1 x\n" + b"9" * 30 + b" 1 x\n7 1 good\n" + b"z" * 600_000
    )

    assert lines_of(tmp_path) == [(False, "good")]


def test_last_line_without_an_end_is_read_once_the_node_has_ended(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_bytes(b"1 1 whole\n2 1 cut")

    running = read_output(tmp_path, 0, has_ended=False)
    ended = read_output(tmp_path, running.next_offset, has_ended=True)

    assert ([text for _, _, text in running.lines], running.is_end) == (["whole"], False)
    assert ([text for _, _, text in ended.lines], ended.is_end) == (["cut"], True)
