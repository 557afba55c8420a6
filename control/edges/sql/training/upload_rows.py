"""Queries on uploads, their parts, and the jobs that hold them.

Whoever changes an upload, or makes a job that holds one, locks the workspace first.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, delete, exists, func, insert, or_, select, update

from control.edges.sql.one_of import one_of
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.training.tables import (
    training_job_artifacts,
    training_jobs,
    training_upload_parts,
    training_uploads,
)
from control.records.training import COMPLETE, GONE, PartRecord, UploadRecord

_uploads = training_uploads.c
_parts = training_upload_parts.c
_links = training_job_artifacts.c
_UPLOAD = tuple(_uploads[name] for name in UploadRecord.__dataclass_fields__)
_PART = tuple(_parts[name] for name in PartRecord.__dataclass_fields__)


async def insert_upload(tx: WriteTx, record: UploadRecord) -> None:
    await tx.conn.execute(insert(training_uploads).values(**_values(record)))


async def find_upload(conn: Connection, workspace_id: str, upload_id: str) -> UploadRecord | None:
    query = select(*_UPLOAD).where(_uploads.id == upload_id, _uploads.workspace_id == workspace_id)
    row = (await conn.execute(query)).one_or_none()
    return UploadRecord(*row) if row else None


async def find_complete(conn: Connection, workspace_id: str, key: str) -> UploadRecord | None:
    """The upload that has this key, once all of it has arrived."""
    of_key = (_uploads.workspace_id == workspace_id, _uploads.key == key, _uploads.status == COMPLETE)
    row = (await conn.execute(select(*_UPLOAD).where(*of_key))).one_or_none()
    return UploadRecord(*row) if row else None


async def set_status(tx: WriteTx, upload_id: str, status: str) -> None:
    await tx.conn.execute(update(training_uploads).where(_uploads.id == upload_id).values(status=status))


async def is_held(conn: Connection, upload_id: str) -> bool:
    """Return whether a job that is not deleted refers to the upload."""
    query = select(_uploads.id).where(_uploads.id == upload_id, _is_held())
    return (await conn.execute(query)).one_or_none() is not None


async def count_unheld(conn: Connection, workspace_id: str) -> tuple[int, int]:
    """The number of a workspace's uploads that no job holds, and the bytes of their parts, also of arriving ones."""
    unheld = (_uploads.workspace_id == workspace_id, ~_is_held())
    count: int = (await conn.execute(select(func.count()).where(*unheld))).scalar_one()
    of_parts = select(func.coalesce(func.sum(_parts.size_bytes), 0))
    query = of_parts.join_from(training_upload_parts, training_uploads, _parts.upload_id == _uploads.id)
    return count, int((await conn.execute(query.where(*unheld))).scalar_one())


async def unheld_uploads(conn: Connection, before_ms: int, limit: int) -> Sequence[UploadRecord]:
    """The oldest uploads that no job holds and that are gone, or were begun before that time."""
    is_over = or_(_uploads.status == GONE, _uploads.created_at_ms < before_ms)
    query = select(*_UPLOAD).where(is_over, ~_is_held()).order_by(_uploads.created_at_ms, _uploads.id).limit(limit)
    return [UploadRecord(*row) for row in await conn.execute(query)]


async def delete_upload(tx: WriteTx, upload_id: str) -> None:
    """Delete an upload whose parts are out of the store, with its parts and what deleted jobs refer to it by."""
    await tx.conn.execute(delete(training_upload_parts).where(_parts.upload_id == upload_id))
    await tx.conn.execute(delete(training_job_artifacts).where(_links.upload_id == upload_id))
    await tx.conn.execute(delete(training_uploads).where(_uploads.id == upload_id))


async def hold_uploads(tx: WriteTx, job_id: str, upload_ids: Iterable[str]) -> None:
    """Let a new job hold these uploads."""
    rows = [{"job_id": job_id, "upload_id": upload_id} for upload_id in sorted(set(upload_ids))]
    if rows:
        await tx.conn.execute(insert(training_job_artifacts), rows)


async def held_uploads(conn: Connection, job_id: str) -> Sequence[UploadRecord]:
    """The uploads that a job refers to, in no order."""
    query = select(*_UPLOAD).join_from(training_uploads, training_job_artifacts, _links.upload_id == _uploads.id)
    return [UploadRecord(*row) for row in await conn.execute(query.where(_links.job_id == job_id))]


async def insert_part(tx: WriteTx, part: PartRecord) -> None:
    await tx.conn.execute(insert(training_upload_parts).values(**_values(part)))


async def update_part(tx: WriteTx, part: PartRecord) -> None:
    await tx.conn.execute(update(training_upload_parts).where(_parts.id == part.id).values(**_values(part)))


async def delete_parts(tx: WriteTx, part_ids: Iterable[str]) -> None:
    await tx.conn.execute(delete(training_upload_parts).where(one_of(_parts.id, part_ids)))


async def list_parts(conn: Connection, upload_id: str) -> Sequence[PartRecord]:
    """The parts of an upload by number, also those on their way."""
    query = select(*_PART).where(_parts.upload_id == upload_id).order_by(_parts.number, _parts.id)
    return [PartRecord(*row) for row in await conn.execute(query)]


async def part_totals(conn: Connection, upload_id: str, but_number: int) -> int:
    """The bytes of an upload's parts, also of those on their way, without the ones of this number."""
    query = select(func.coalesce(func.sum(_parts.size_bytes), 0))
    query = query.where(_parts.upload_id == upload_id, _parts.number != but_number)
    return int((await conn.execute(query)).scalar_one())


def _is_held() -> ColumnElement[bool]:
    of_upload = (_links.upload_id == _uploads.id, training_jobs.c.id == _links.job_id, ~training_jobs.c.is_deleted)
    return exists(select(_links.job_id).where(*of_upload).correlate(training_uploads))


def _values(record: UploadRecord | PartRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}
