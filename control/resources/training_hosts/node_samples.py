"""The use that nodes of jobs make of their machines, as trainers measure it. Bounded per job: the oldest samples go.

See docs/reference/training.md#logs-and-metrics.
"""

from collections.abc import Sequence
from functools import partial

from control.edges.sql.store import Store, WriteTx, in_batches, now_ms
from control.edges.sql.training import job_rows
from control.edges.sql.training import sample_rows as rows
from control.edges.sql.training.sample_rows import SampleWindow
from control.errors import InvalidFieldError
from control.records.training import JobRecord, StoredSample
from policy.training.node_use import NodeSample

MAX_SAMPLES = 100_000
SAMPLES_AT_ONCE = 10_000
"""The most samples of one answer, of all nodes: a longer time is shown in longer steps."""
SAMPLE_MS = 15_000
"""The interval at which a trainer samples, and the shortest step unless a shorter one is asked for."""
DEFAULT_WINDOW_MS = 3_600_000
_DELETED_AT_ONCE = 500


class NodeSamples:
    """The samples in one database."""

    def __init__(self, store: Store, max_samples: int = MAX_SAMPLES) -> None:
        self._store = store
        self._max_samples = max_samples

    async def insert(self, samples: Sequence[NodeSample]) -> None:
        """Write what a trainer measured of present attempts; the rest is dropped. Samples may be repeated."""
        if not samples:
            return
        async with self._store.read() as conn:
            jobs = {job.id: job for job in await job_rows.find_jobs(conn, {one.job_id for one in samples})}
        present = [one for one in samples if one.job_id in jobs and _is_of(one, jobs[one.job_id])]
        if present:
            await self._store.transact(partial(rows.insert_samples, samples=present))

    async def read(self, job_id: str, window: SampleWindow) -> Sequence[StoredSample]:
        async with self._store.read() as conn:
            return await rows.read_samples(conn, job_id, window)

    async def prune(self) -> int:
        """Cut back the samples of every job; delete those of deleted jobs. Returns the number of deleted samples."""
        deleted = 0
        id = ""
        while True:
            async with self._store.read() as conn:
                job_id = await rows.job_after(conn, id)
                last_ms = None if job_id is None else await rows.newest_beyond(conn, job_id, self._max_samples)
            if job_id is None:
                return deleted
            id = job_id
            if last_ms is not None:
                deleted += await in_batches(self._store, partial(_delete, job_id=id, last_ms=last_ms))


def window_of(job: JobRecord, since_ms: int | None, until_ms: int | None, step_s: int | None) -> SampleWindow:
    """The window that is asked for. By default the last hour of the job, in the shortest steps that fit an answer."""
    last_ms = until_ms if until_ms is not None else job.ended_at_ms or now_ms()
    first_ms = since_ms if since_ms is not None else max(0, last_ms - DEFAULT_WINDOW_MS)
    if first_ms > last_ms:
        raise InvalidFieldError("start_epoch_millis", "start_epoch_millis must not be after end_epoch_millis")
    least_ms = -(-(last_ms - first_ms) * job.node_count // SAMPLES_AT_ONCE)
    return SampleWindow(first_ms, last_ms, max(SAMPLE_MS if step_s is None else step_s * 1000, least_ms))


def _is_of(sample: NodeSample, job: JobRecord) -> bool:
    return not job.is_deleted and sample.attempt == job.attempt and sample.rank < job.node_count


async def _delete(tx: WriteTx, job_id: str, last_ms: int) -> int:
    return await rows.delete_up_to(tx, job_id, last_ms, _DELETED_AT_ONCE)
