"""The GPUs of the machines that run jobs, and how many of them jobs have.

See docs/reference/training.md#capacity.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from control.edges.sql.store import Store
from control.edges.sql.training import backend_rows, job_rows
from control.records.training import JobRecord
from policy.training.job_spec import SPOT
from policy.training.statuses import PLACED


@dataclass(frozen=True, slots=True)
class GpuUse:
    """The GPUs of one type: how many there are, and how many jobs have, by availability model."""

    gpu_type: str
    total: int
    dedicated: int
    spot: int

    @property
    def used(self) -> int:
        return self.dedicated + self.spot


async def read_capacity(store: Store, workspace_id: str) -> tuple[Sequence[GpuUse], Sequence[GpuUse]]:
    """The use by all jobs, and by those of the workspace, by type. Machines are those that were reported last."""
    async with store.read() as conn:
        backend = await backend_rows.find_backend(conn)
        placed = [job for job in await job_rows.wanted_jobs(conn) if job.status in PLACED]
    totals = Counter[str]()
    for host in backend.hosts if backend else ():
        totals.update(host.gpus)
    return _uses(totals, placed), _uses(totals, [job for job in placed if job.workspace_id == workspace_id])


def _uses(totals: Counter[str], jobs: Iterable[JobRecord]) -> Sequence[GpuUse]:
    counts = Counter[tuple[str, bool]]()
    for job in jobs:
        if job.resources.gpu_type is not None:
            counts[job.resources.gpu_type, job.availability_model == SPOT] += job.resources.gpu_count * job.node_count
    types = sorted(totals.keys() | {type for type, _ in counts})
    return [GpuUse(type, totals[type], counts[type, False], counts[type, True]) for type in types]
