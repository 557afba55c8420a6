"""The records of a driver for the trainer: lines of JSON on its standard output, which Ray keeps as the job's log.

A record starts with the separator of RFC 7464, so that text which Ray itself writes into the log, even half a line,
spoils no record. What a node printed is inside of JSON strings: it cannot forge a record.
See docs/reference/training.md#ray.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from policy.training.reports import CheckpointReport, JobReport
from policy.training.wire import count, flag, objects, text

SEPARATOR = "\x1e"


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes of a node's output file from `offset` on. `is_end`: the node has ended, and these are the last."""

    rank: int
    offset: int
    content: bytes
    is_end: bool = False


Record = JobReport | Output | tuple[CheckpointReport, ...]
"""The newest JobReport and the newest checkpoints replace all earlier ones."""


def encode(record: Record) -> str:
    """One line. Characters outside of ASCII are escaped, so no encoding on the way can change it."""
    return f"{SEPARATOR}{json.dumps(_to_wire(record), separators=(',', ':'))}\n"


def _to_wire(record: Record) -> dict[str, Any]:
    if isinstance(record, JobReport):
        return {"report": record.to_wire()}
    if isinstance(record, tuple):
        return {"checkpoints": [checkpoint.to_wire() for checkpoint in record]}
    content = record.content.decode("utf-8", "surrogateescape")
    return {"rank": record.rank, "offset": record.offset, "content": content, "is_end": record.is_end}


def decode(line: str) -> Record | None:
    """The record of a line; None if the line has none. Raises KeyError, TypeError or ValueError if it is damaged."""
    _, separator, encoded = line.rpartition(SEPARATOR)
    if not separator:
        return None
    wire = json.loads(encoded)
    if "report" in wire:
        return JobReport.from_wire(wire["report"])
    if "checkpoints" in wire:
        return tuple(map(CheckpointReport.from_wire, objects(wire, "checkpoints")))
    content = text(wire, "content").encode("utf-8", "surrogateescape")
    return Output(count(wire, "rank"), count(wire, "offset"), content, flag(wire, "is_end"))


class LineSplitter:
    """Turns chunks of text, cut anywhere, into whole lines."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def lines(self, chunk: str) -> Iterator[str]:
        head, *rest = chunk.split("\n")
        self._parts.append(head)
        for part in rest:
            yield "".join(self._parts)
            self._parts = [part]


def whole_lines(content: bytes, at_end: bool) -> bytes:
    """`content` up to its last line feed, or all of it at the end of a file."""
    return content if at_end else content[: content.rfind(b"\n") + 1]
