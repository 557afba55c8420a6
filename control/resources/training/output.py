"""Output of the nodes of a job: each byte range of a node's output is taken once, with its lines and its metrics.

A batch, its lines, its metrics and the offset behind it are one transaction, so a batch that is sent again, late or out
of order changes nothing.

See docs/reference/training.md#logs-and-metrics.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from control.edges.sql.store import Store, WriteTx
from control.edges.sql.training import job_rows
from control.errors import InvalidFieldError
from control.long_work import OPERATOR, beside
from control.records.logs import LogLine
from control.resources.logs import MAX_NS, Logs, printable
from control.resources.training.metrics import JobMetrics
from policy.training.reports import MetricPoint, OutputBatch, OutputLine

_Lines = Sequence[tuple[str, LogLine]]


@dataclass(frozen=True, slots=True)
class Taken:
    """The offset that the trainer goes on from, and what of the batch was written or dropped for good."""

    offset: int
    lines: int = 0
    points: int = 0
    dropped_lines: int = 0
    dropped_points: int = 0


class JobOutput:
    """The logs and metrics of jobs in one database."""

    def __init__(self, store: Store, logs: Logs, metrics: JobMetrics) -> None:
        self._store = store
        self.logs = logs
        self.metrics = metrics

    async def accept(self, job_id: str, batch: OutputBatch) -> Taken:
        """Take a batch if it begins where the last one ended.

        The output of a job that is gone, and of an earlier attempt, is dropped: nobody would ask for it again.
        """
        items = len(batch.lines) + len(batch.metrics)
        lines, points = await beside(OPERATOR, items, partial(_printable, job_id, batch))

        async def work(tx: WriteTx) -> Taken:
            return await self._append(tx, job_id, batch, lines, points)

        result = await self._store.transact(work)
        if result.lines:
            await self.logs.note_written(lines)
        if result.points:
            await self.metrics.note_written(job_id, result.points)
        return result

    async def prune(self) -> int:
        """Cut back all logs and metrics. Returns the number of deleted rows."""
        return await self.logs.prune() + await self.metrics.prune()

    async def _append(
        self, tx: WriteTx, job_id: str, batch: OutputBatch, lines: _Lines, points: Sequence[MetricPoint]
    ) -> Taken:
        job = await job_rows.lock_job(tx, job_id)
        if job is None or job.is_deleted or job.attempt != batch.attempt:
            return Taken(batch.next_offset, dropped_lines=len(lines), dropped_points=len(points))
        if batch.rank >= job.node_count:
            raise InvalidFieldError("rank", f"rank must be below {job.node_count}, the number of the job's nodes")
        expected = job.output_offsets.get(batch.rank, 0)
        if batch.offset != expected:
            return Taken(expected)
        await self.logs.insert(tx, lines, in_order_of=_node_name(batch))
        point_count = await self.metrics.insert(tx, job_id, points)
        offsets = {**job.output_offsets, batch.rank: batch.next_offset}
        await job_rows.update_job(tx, job, replace(job, output_offsets=offsets))
        return Taken(batch.next_offset, len(lines), point_count, dropped_points=len(points) - point_count)


def _printable(job_id: str, batch: OutputBatch) -> tuple[_Lines, Sequence[MetricPoint]]:
    """The lines and points of a batch as they are stored."""
    replica = _node_name(batch)
    points = [replace(point, name=printable(point.name)) for point in batch.metrics]
    return [(job_id, _line(line, replica)) for line in batch.lines], points


def _node_name(batch: OutputBatch) -> str:
    """The node, as log lines name it."""
    return f"g00r{batch.rank}"


def _line(line: OutputLine, replica: str) -> LogLine:
    return LogLine(min(line.timestamp_ns, MAX_NS), line.level, printable(line.message), replica, None)
