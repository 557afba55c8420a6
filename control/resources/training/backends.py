"""Whether the training backend is there, by what its trainer reported last.

See docs/reference/training.md#backends.
"""

from control.edges.sql.store import Connection
from control.edges.sql.training import backend_rows
from control.resources.errors import TrainingUnavailableError
from control.resources.training.records import BackendRecord

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
