"""The lines that a driver and the trainer share, and the trainer's copy of them."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from policy.training.reports import CheckpointReport, JobReport
from policy.training.statuses import Phase
from trainer.edges.ray.records import LineSplitter, Output, decode, encode, whole_lines
from trainer.edges.ray.spool import Spool

REPORT = JobReport("job", 1, Phase.RUNNING)
CHECKPOINT = CheckpointReport("step-1", "job/step-1/v", 5, "FULL", None, None, 3)


@given(st.builds(Output, st.integers(0, 9), st.integers(0, 10**12), st.binary(), st.booleans()))
def test_output_survives_the_way_byte_by_byte(output: Output) -> None:
    assert decode(encode(output).rstrip("\n")) == output


@given(st.binary())
def test_what_a_node_prints_is_one_line_without_separators(content: bytes) -> None:
    line = encode(Output(0, 0, content))

    assert line.isascii()
    assert (line.count("\n"), line.count("\x1e")) == (1, 1)


def test_reports_and_checkpoints_survive_the_way() -> None:
    assert decode(encode(REPORT)) == REPORT
    assert decode(encode((CHECKPOINT,))) == (CHECKPOINT,)


def test_text_of_rays_own_is_skipped_also_before_a_record() -> None:
    assert decode("Running entrypoint for job job-1") is None
    assert decode(f"half a warning{encode(REPORT)}") == REPORT


@given(st.text(alphabet="ab\n"), st.integers(1, 5))
def test_lines_are_whole_however_chunks_are_cut(text: str, size: int) -> None:
    splitter = LineSplitter()
    chunks = [text[at : at + size] for at in range(0, len(text), size)]

    assert [line for chunk in chunks for line in splitter.lines(chunk)] == text.split("\n")[:-1]


def test_unfinished_line_waits_for_its_end() -> None:
    assert whole_lines(b"1 1 a\n2 1 b", at_end=False) == b"1 1 a\n"
    assert whole_lines(b"1 1 a\n2 1 b", at_end=True) == b"1 1 a\n2 1 b"


def test_log_that_is_read_again_changes_nothing(tmp_path: Path) -> None:
    outputs = [Output(0, 0, b"1 1 a\n"), Output(0, 6, b"2 2 b\n"), Output(0, 12, b"", is_end=True)]
    log = encode(REPORT) + "".join(encode(output) for output in outputs)
    spool = Spool(tmp_path / "job-1")
    for _ in range(2):
        spool.begin()
        spool.feed(log)

    chunk = spool.chunk(0, 0, is_done=False)

    assert list(chunk.lines) == [(1, False, "a"), (2, True, "b")]
    assert (chunk.next_offset, chunk.is_end) == (12, True)
    assert spool.report == REPORT


def test_output_has_no_end_while_the_driver_may_tell_more(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "job-1")
    spool.begin()
    spool.feed(encode(Output(0, 0, b"1 1 a\n")))

    assert not spool.chunk(0, 0, is_done=False).is_end
    assert spool.chunk(0, 0, is_done=True).is_end
