"""The checkpoints of training jobs: what trainers report of them, and what their workspaces may see.

Control never writes the store. A checkpoint's row names a verified content or, until there is one, the one on its way.

See docs/reference/training.md#checkpoints.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from control.edges.sql.store import Store, WriteTx, now_ms
from control.edges.sql.training import checkpoint_rows, job_rows
from control.errors import CheckpointFileNotFoundError
from control.records.ids import new_id
from control.records.training import CheckpointRecord, JobRef
from control.resources.training import job_states
from control.resources.training.download_links import VALID_MS, Link, LinkSealer
from control.resources.training.errors import (
    CheckpointNotFoundError,
    CheckpointNotSyncedError,
    TrainingJobNotFoundError,
)
from control.resources.training.jobs import JobSummary, find_job
from policy.training.reports import CheckpointFile, CheckpointReport
from policy.training.statuses import SYNCED, SYNCING


@dataclass(frozen=True, slots=True)
class TakenCheckpoints:
    """The `sync_status` that checkpoints came to by a report."""

    entered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListedFiles:
    """The files of a checkpoint, and until when links to them are valid."""

    workspace_id: str
    record: CheckpointRecord
    files: Sequence[CheckpointFile]
    expires_at_ms: int

    def link(self, file: CheckpointFile) -> Link:
        return Link(self.workspace_id, self.record.id, self.record.location, file.path, self.expires_at_ms)


@dataclass(frozen=True, slots=True)
class JobFiles:
    """A part of the files of a job's checkpoints, and how many there are in all."""

    pages: Sequence[ListedFiles]
    total: int


async def take_reports(
    store: Store, job_id: str, attempt: int, reports: Sequence[CheckpointReport]
) -> TakenCheckpoints:
    """Take all checkpoints of an attempt, as far as their way into the store. Reports may be repeated.

    A checkpoint of the same name that is in the store stays until the new content is. One that was on its way and is
    not reported any more is forgotten: the job removed it. Of an earlier attempt nothing is taken.
    """

    async def work(tx: WriteTx) -> TakenCheckpoints:
        job = await job_rows.lock_job(tx, job_id)
        if job is None or job.is_deleted:
            raise TrainingJobNotFoundError
        if job.attempt != attempt:
            return TakenCheckpoints()
        entered = await _write(tx, job_id, reports)
        if reports:
            is_syncing = any(report.files is None for report in reports)
            await job_rows.update_job(tx, job, job_states.checkpoints_reported(job, is_syncing, tx.now_ms))
        return TakenCheckpoints(entered)

    return await store.transact(work)


async def list_checkpoints(store: Store, ref: JobRef) -> tuple[JobSummary, Sequence[CheckpointRecord]]:
    """A job and its checkpoints, the oldest first."""
    async with store.read() as conn:
        job = await find_job(conn, ref)
        return job, await checkpoint_rows.list_checkpoints(conn, ref.job_id)


async def list_files(store: Store, ref: JobRef, checkpoint_id: str) -> ListedFiles:
    """The files of a checkpoint, as they are in the store. CheckpointNotSyncedError if they are not there yet."""
    async with store.read() as conn:
        await find_job(conn, ref)
        record = await checkpoint_rows.find_checkpoint(conn, checkpoint_id)
        if record is None or record.job_id != ref.job_id:
            raise CheckpointNotFoundError
        files = await checkpoint_rows.get_files(conn, checkpoint_id)
        if files is None:
            raise CheckpointNotSyncedError
        return ListedFiles(ref.workspace_id, record, files, now_ms() + VALID_MS)


async def list_job_files(store: Store, ref: JobRef, offset: int, limit: int) -> JobFiles:
    """A page of the files of all checkpoints of a job that are in the store: by checkpoint, the oldest first."""
    pages = list[ListedFiles]()
    async with store.read() as conn:
        await find_job(conn, ref)
        expires_at_ms = now_ms() + VALID_MS
        first = 0
        for id, count in await checkpoint_rows.file_counts(conn, ref.job_id):
            part = slice(max(0, offset - first), max(0, offset + limit - first))
            first += count
            if part.start < min(part.stop, count):
                record = await checkpoint_rows.find_checkpoint(conn, id)
                files = await checkpoint_rows.get_files(conn, id)
                if record is not None and files is not None:
                    ordered = sorted(files, key=lambda file: file.path)
                    pages.append(ListedFiles(ref.workspace_id, record, ordered[part], expires_at_ms))
    return JobFiles(pages, first)


async def find_file(store: Store, links: LinkSealer, token: str) -> tuple[Link, CheckpointFile]:
    """Find the file that a link opens. LinkExpiredError; CheckpointFileNotFoundError if that content is gone."""
    link = links.open(token, now_ms())
    async with store.read() as conn:
        record = await checkpoint_rows.find_checkpoint(conn, link.checkpoint_id)
        job = await job_rows.find_job_anywhere(conn, record.job_id) if record else None
        if record is None or job is None or job.is_deleted or job.workspace_id != link.workspace_id:
            raise CheckpointFileNotFoundError
        files = await checkpoint_rows.get_files(conn, record.id) if record.location == link.location else None
        content = next((file for file in files or () if file.path == link.path), None)
        if content is None:
            raise CheckpointFileNotFoundError
        return link, content


async def _write(tx: WriteTx, job_id: str, reports: Sequence[CheckpointReport]) -> tuple[str, ...]:
    records = {record.name: record for record in await checkpoint_rows.list_checkpoints(tx.conn, job_id)}
    entered: list[str] = []
    for report in reports:
        before = records.get(report.name)
        after = _record(job_id, report, before, tx.now_ms)
        if before is None:
            await checkpoint_rows.insert_checkpoint(tx, after, report.files)
        elif _is_news(before, after):
            await checkpoint_rows.update_checkpoint(tx, after, report.files)
        else:
            continue
        entered.append(after.sync_status)
    reported = {report.name for report in reports}
    lost_ids = [one.id for one in records.values() if one.sync_status == SYNCING and one.name not in reported]
    if lost_ids:
        await checkpoint_rows.delete_checkpoints(tx, lost_ids)
    return tuple(entered)


def _is_news(before: CheckpointRecord, after: CheckpointRecord) -> bool:
    """A location has one content. What is verified is replaced only by what is verified."""
    is_same = (before.location, before.sync_status) == (after.location, after.sync_status)
    return not is_same and not (before.sync_status == SYNCED and after.sync_status == SYNCING)


def _record(job_id: str, report: CheckpointReport, before: CheckpointRecord | None, now_ms: int) -> CheckpointRecord:
    config = report.lora_adapter_config
    return CheckpointRecord(
        id=before.id if before else new_id("ckpt"),
        job_id=job_id,
        name=report.name,
        location=report.location,
        checkpoint_type=report.checkpoint_type,
        base_model=report.base_model,
        lora_adapter_config=None if config is None else orjson.dumps(config).decode(),
        size_bytes=report.size_bytes,
        sync_status=SYNCING if report.files is None else SYNCED,
        created_at_ms=report.created_at_ms,
        updated_at_ms=now_ms,
    )
