"""The trainer's copy of a driver's records of one attempt: the newest report and checkpoints, and the output on disk.

The output files equal those on the Ray machines byte by byte, so offsets mean the same after a restart, and also when
the files were lost and the log was read again.
"""

import os
import shutil
from dataclasses import replace
from pathlib import Path

from policy.training.reports import CheckpointReport, JobReport
from trainer.backend import OutputChunk
from trainer.edges.local.output_reader import read_output
from trainer.edges.ray.records import LineSplitter, Output, Record, decode
from trainer.runner.output_log import FILE_NAME


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

    def feed(self, chunk: str) -> None:
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
        self._node(output.rank).mkdir(exist_ok=True)
        with (self._node(output.rank) / FILE_NAME).open("ab") as file:
            size = os.fstat(file.fileno()).st_size
            if size < end:
                file.write(output.content[max(0, size - output.offset) :])
        if output.is_end:
            self._ends[output.rank] = end

    def _node(self, rank: int) -> Path:
        return self._directory / f"node-{rank}"

    def chunk(self, rank: int, offset: int, is_done: bool) -> OutputChunk:
        """A piece of a node's output. `is_done`: the whole log was taken."""
        end = self._ends.get(rank)
        chunk = read_output(self._node(rank), offset, has_ended=is_done or end is not None)
        if chunk.is_end and end is not None and chunk.next_offset < end:  # the log is being read again
            return replace(chunk, is_end=False)
        return chunk

    def remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
