"""Queries on `training_checkpoints`: rows and `CheckpointRecord`s. Only `get_files` reads a checkpoint's files."""

from collections.abc import Iterable, Sequence
from typing import Any

import orjson
from sqlalchemy import JSON, cast, delete, func, insert, select, update

from control.edges.sql.one_of import one_of
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.training.tables import training_checkpoints
from control.records.training import CheckpointRecord
from policy.training.reports import CheckpointFile

_checkpoints = training_checkpoints.c
_COLUMNS = tuple(_checkpoints[name] for name in CheckpointRecord.__dataclass_fields__)


async def list_checkpoints(conn: Connection, job_id: str) -> Sequence[CheckpointRecord]:
    """All checkpoints of a job, the oldest first."""
    query = select(*_COLUMNS).where(_checkpoints.job_id == job_id)
    rows = await conn.execute(query.order_by(_checkpoints.created_at_ms, _checkpoints.id))
    return [CheckpointRecord(*row) for row in rows]


async def file_counts(conn: Connection, job_id: str) -> Sequence[tuple[str, int]]:
    """The id and the number of files of each checkpoint that is in the store, the oldest first."""
    is_sqlite = conn.dialect.name == "sqlite"
    files = _checkpoints.files if is_sqlite else cast(_checkpoints.files, JSON)
    query = select(_checkpoints.id, func.json_array_length(files)).where(_checkpoints.job_id == job_id)
    query = query.where(_checkpoints.files.is_not(None)).order_by(_checkpoints.created_at_ms, _checkpoints.id)
    return [(row[0], row[1]) for row in await conn.execute(query)]


async def find_checkpoint(conn: Connection, checkpoint_id: str) -> CheckpointRecord | None:
    row = (await conn.execute(select(*_COLUMNS).where(_checkpoints.id == checkpoint_id))).one_or_none()
    return CheckpointRecord(*row) if row else None


async def get_files(conn: Connection, checkpoint_id: str) -> Sequence[CheckpointFile] | None:
    """The files of an existing checkpoint; None if they are not verified in the store yet."""
    query = select(_checkpoints.files).where(_checkpoints.id == checkpoint_id)
    text = (await conn.execute(query)).scalar_one()
    return None if text is None else tuple(map(CheckpointFile.from_wire, orjson.loads(text)))


async def insert_checkpoint(tx: WriteTx, record: CheckpointRecord, files: Sequence[CheckpointFile] | None) -> None:
    await tx.conn.execute(insert(training_checkpoints).values(**_values(record, files)))


async def update_checkpoint(tx: WriteTx, record: CheckpointRecord, files: Sequence[CheckpointFile] | None) -> None:
    changed = update(training_checkpoints).where(_checkpoints.id == record.id)
    await tx.conn.execute(changed.values(**_values(record, files)))


async def delete_checkpoints(tx: WriteTx, ids: Iterable[str]) -> None:
    await tx.conn.execute(delete(training_checkpoints).where(one_of(_checkpoints.id, ids)))


def _values(record: CheckpointRecord, files: Sequence[CheckpointFile] | None) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in CheckpointRecord.__dataclass_fields__}
    text = None if files is None else orjson.dumps([file.to_wire() for file in files]).decode()
    return values | {"files": text}
