"""The presence of the training backend, by the last report of its trainer.

See docs/reference/training.md#backends.
"""

from collections.abc import Sequence

from control.edges.sql.store import Connection, Store
from control.edges.sql.training import backend_rows
from control.records.training import BackendRecord
from control.resources.training.errors import TrainingUnavailableError
from policy.training.resources import Host

REPORT_VALID_MS = 5_000
"""A trainer that was silent for longer is away. It reports twice a second."""


async def present_backend(conn: Connection, now_ms: int) -> BackendRecord:
    """The backend as it was reported last. TrainingUnavailableError if it is away."""
    backend = await backend_rows.find_backend(conn)
    if backend is None or now_ms - backend.reported_at_ms > REPORT_VALID_MS:
        raise TrainingUnavailableError
    if backend.reason is not None:
        raise TrainingUnavailableError(backend.reason)
    return backend


async def last_hosts(store: Store) -> Sequence[Host]:
    """The machines that were reported last, also while the backend is away; none if no trainer ever reported."""
    async with store.read() as conn:
        backend = await backend_rows.find_backend(conn)
    return backend.hosts if backend else ()
