"""Reads a node's output: every line is a log line, and some lines of standard output are metrics. Pure.

See docs/reference/training.md#logs-and-metrics.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

from policy.training.reports import MetricPoint, OutputBatch, OutputLine
from trainer.backend import OutputChunk

INFO = "INFO"
WARNING = "WARNING"
MAX_METRIC_CHARS = 255
MAX_STEP = 2**63 - 1
_NS_PER_MS = 1_000_000


def batch(attempt: int, rank: int, offset: int, chunk: OutputChunk) -> OutputBatch:
    """Return what control gets of a chunk that begins at `offset`."""
    return OutputBatch(
        attempt=attempt,
        rank=rank,
        offset=offset,
        next_offset=chunk.next_offset,
        lines=[OutputLine(at_ns, WARNING if is_error else INFO, text) for at_ns, is_error, text in chunk.lines],
        metrics=list(_metrics(chunk)),
    )


def _metrics(chunk: OutputChunk) -> Iterator[MetricPoint]:
    for at_ns, is_error, text in chunk.lines:
        if not is_error and (point := metric(at_ns, text)):
            yield point


def metric(at_ns: int, text: str) -> MetricPoint | None:
    """The metric that a line is: `{"metric": "loss", "value": 0.5, "step": 3}`, the step optional. None: it is none."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        members = json.loads(text)
    except (ValueError, RecursionError):  # cut off, or text that only looks like JSON
        return None
    if not isinstance(members, dict):
        return None
    name = members.get("metric")
    value = _finite(members.get("value"))
    step = members.get("step")
    if not isinstance(name, str) or not _is_metric_name(name) or value is None or not _is_step(step):
        return None
    return MetricPoint(name, at_ns // _NS_PER_MS, step, value)


def _is_metric_name(name: str) -> bool:
    """Return whether every database can hold it."""
    return 1 <= len(name) <= MAX_METRIC_CHARS and name.isprintable()


def _finite(value: Any) -> float | None:
    if type(value) not in (int, float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _is_step(step: Any) -> bool:
    return step is None or (type(step) is int and -MAX_STEP <= step <= MAX_STEP)
