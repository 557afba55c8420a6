"""What a driver told of one attempt, on the trainer's side: the newest report and checkpoints, and the output on disk.

The output files equal those on the Ray machines byte by byte, so offsets mean the same after a restart, and also when
the files were lost and the log was read again.
"""

import os
import shutil
from pathlib import Path

from policy.training.reports import CheckpointReport, JobReport
from trainer.backend import OutputChunk
from trainer.edges.ray.records import LineSplitter, Output, Record, decode

_CHUNK_BYTES = 256 * 1024
"""Larger than the longest line."""


class Spool:
    """Takes the job's log from its start on, as often as needed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._splitter = LineSplitter()
        self._ends: dict[int, int] = {}
        self.report: JobReport | None = None
        self.checkpoints: tuple[CheckpointReport, ...] = ()

    def begin(self) -> None:
        """The log is read from its start again."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._splitter = LineSplitter()

    def take(self, chunk: str) -> None:
        """Take a piece of the log. Raises KeyError, TypeError or ValueError if a record is damaged."""
        for line in self._splitter.lines(chunk):
            record = decode(line)
            if record is not None:
                self._take_record(record)

    def _take_record(self, record: Record) -> None:
        if isinstance(record, JobReport):
            self.report = record
        elif isinstance(record, Output):
            self._append(record)
        else:
            self.checkpoints = record

    def _append(self, output: Output) -> None:
        """Write what is not there yet."""
        end = output.offset + len(output.content)
        with self._path(output.rank).open("ab") as file:
            known = os.fstat(file.fileno()).st_size
            if known < end:
                file.write(output.content[max(0, known - output.offset) :])
        if output.is_end:
            self._ends[output.rank] = end

    def _path(self, rank: int) -> Path:
        return self._directory / f"node-{rank}.log"

    def chunk(self, rank: int, offset: int, is_done: bool) -> OutputChunk:
        """A piece of a node's output. `is_done`: nothing will be added."""
        content = self._read(rank, offset)
        at = offset + len(content)
        is_end = at == self._ends.get(rank) or (is_done and not self._read(rank, at))
        return OutputChunk([_parsed(line) for line in content.splitlines()], at, is_end)

    def _read(self, rank: int, offset: int) -> bytes:
        """Whole lines from the offset on."""
        try:
            with self._path(rank).open("rb") as file:
                file.seek(offset)
                content = file.read(_CHUNK_BYTES)
        except FileNotFoundError:
            return b""
        return content[: content.rfind(b"\n") + 1]

    def remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


def _parsed(line: bytes) -> tuple[int, bool, str]:
    """A line `<epoch ns> <1|2> <text>` of `trainer/runner/output_log.py`."""
    timestamp_ns, stream, text = line.split(b" ", 2)
    return int(timestamp_ns), stream == b"2", text.decode(errors="replace")
