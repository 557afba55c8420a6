"""The query for the checkpoint that a job starts with."""

import orjson
from sqlalchemy import select

from control.edges.sql.store import Connection
from control.edges.sql.training.tables import training_checkpoints
from policy.training.reports import CheckpointFile, Restore

_checkpoints = training_checkpoints.c


async def last_checkpoint(conn: Connection, job_id: str) -> Restore | None:
    """The newest checkpoint of a job that is in the store, verified."""
    query = select(_checkpoints.name, _checkpoints.location, _checkpoints.files)
    query = query.where(_checkpoints.job_id == job_id, _checkpoints.files.is_not(None))
    newest_first = (_checkpoints.created_at_ms.desc(), _checkpoints.updated_at_ms.desc(), _checkpoints.id.desc())
    row = (await conn.execute(query.order_by(*newest_first).limit(1))).one_or_none()
    if row is None:
        return None
    return Restore(row.name, row.location, tuple(map(CheckpointFile.from_wire, orjson.loads(row.files))))
