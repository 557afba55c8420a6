"""Checks which lines of a node's output are metrics."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.training.reports import MetricPoint, OutputLine
from trainer.backend import OutputChunk
from trainer.output_lines import batch, metric


def test_a_chunk_becomes_a_batch_of_log_lines_and_metrics() -> None:
    point = '{"metric": "loss", "step": 3, "value": 0.25}'
    chunk = OutputChunk([(1_000_000, False, "hello"), (2_000_000, True, point), (3_000_000, False, point)], 90, False)
    output = batch(2, 1, 40, chunk)
    assert (output.attempt, output.rank, output.offset, output.next_offset) == (2, 1, 40, 90)
    assert output.lines == [
        OutputLine(1_000_000, "INFO", "hello"),
        OutputLine(2_000_000, "WARNING", point),
        OutputLine(3_000_000, "INFO", point),
    ]
    assert output.metrics == [MetricPoint("loss", 3, 3, 0.25)], "standard error has no metrics"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"metric": "loss", "value": 1}', (None, 1.0)),
        ('  {"value": -1.5, "metric": "loss", "step": 0, "more": []} ', (0, -1.5)),
        ('{"metric": "loss", "value": 1e3, "step": null}', (None, 1000.0)),
    ],
)
def test_metrics(line: str, expected: tuple[int | None, float]) -> None:
    point = metric(5_000_000, line)
    assert point is not None
    assert (point.name, point.timestamp_ms, point.step, point.value) == ("loss", 5, *expected)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "loss 0.5",
        "{",
        "{}",
        "[]",
        '["metric"]',
        '{"metric": "loss"}',
        '{"metric": "loss", "value": "1"}',
        '{"metric": "loss", "value": true}',
        '{"metric": "loss", "value": NaN}',
        '{"metric": "loss", "value": -Infinity}',
        '{"metric": "loss", "value": 1e999}',
        '{"metric": "loss", "value": null}',
        '{"metric": "", "value": 1}',
        '{"metric": 3, "value": 1}',
        '{"metric": "a\\u0000b", "value": 1}',
        '{"metric": "\\ud800", "value": 1}',
        '{"metric": "loss", "value": 1, "step": 1.5}',
        '{"metric": "loss", "value": 1, "step": true}',
        '{"metric": "loss", "value": 1, "step": "1"}',
        '{"metric": "loss", "value": 1, "step": 9223372036854775808}',
        '{"metric": "loss", "value": ' + "9" * 400 + "}",
        '{"metric": "loss", "value": ' + "9" * 5000 + "}",
        '{"metric": "' + "x" * 256 + '", "value": 1}',
        '{"metric":' * 20_000,
        "[" * 20_000,
    ],
    ids=lambda line: line[:30],
)
def test_other_lines_are_no_metrics(line: str) -> None:
    assert metric(1, line) is None


@given(st.text() | st.dictionaries(st.text(), st.none() | st.integers() | st.floats() | st.text()).map(json.dumps))
def test_no_line_breaks_the_reader(line: str) -> None:
    metric(1, line)
