"""Uploads: begun, filled part by part, completed or aborted. Each part is an object of the store; none is ever copied.

A part's row is written before its bytes, so that what is in the store is always known and counted.

See docs/reference/training.md#uploads.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from control.edges.sql import workspace_rows
from control.edges.sql.store import Store, WriteTx
from control.edges.sql.training import upload_rows
from control.records.ids import new_id
from control.records.training import COMPLETE, GONE, OPEN, PartRecord, UploadRecord
from control.resources.training.errors import (
    InvalidPartError,
    TooManyUploadsError,
    TrainingNotEnabledError,
    UploadHeldError,
    UploadNotFoundError,
    UploadTooLargeError,
)
from control.resources.uploads.grants import Grant
from policy.training.artifacts import MAX_ARTIFACT_BYTES

MAX_PARTS = 10_000
MAX_UNHELD = 100
"""The most uploads of a workspace that no job holds."""
MAX_UNHELD_BYTES = 20 * 1024**3


@dataclass(frozen=True, slots=True)
class ListedPart:
    """A part as the one who uploaded it names it."""

    number: int
    etag: str


@dataclass(frozen=True, slots=True)
class Completed:
    """A completed upload. `etag`: as S3 has it for parts."""

    etag: str
    left_over: tuple[PartRecord, ...] = ()
    """The parts that do not belong to it."""
    replaced: UploadRecord | None = None
    """The upload that had the key before."""


async def begin_upload(store: Store, grant: Grant) -> str:
    """The id of a new upload. UploadHeldError if a job holds what the key names; TooManyUploadsError."""

    async def work(tx: WriteTx) -> str:
        await _lock(tx, grant)
        await _replaceable(tx, grant)
        count, size_bytes = await upload_rows.count_unheld(tx.conn, grant.workspace_id)
        if count >= MAX_UNHELD or size_bytes >= MAX_UNHELD_BYTES:
            raise TooManyUploadsError(MAX_UNHELD, MAX_UNHELD_BYTES)
        upload = UploadRecord(new_id("up"), grant.workspace_id, grant.key, OPEN, tx.now_ms)
        await upload_rows.insert_upload(tx, upload)
        return upload.id

    return await store.transact(work)


async def begin_part(store: Store, grant: Grant, upload_id: str, number: int, size_bytes: int) -> PartRecord:
    """Make room for a part that is to be written under its id.

    UploadNotFoundError; UploadTooLargeError if the parts exceed an artifact's bound; TooManyUploadsError.
    """

    async def work(tx: WriteTx) -> PartRecord:
        await _lock(tx, grant)
        await _open_upload(tx, grant, upload_id)
        if await upload_rows.part_totals(tx.conn, upload_id, but_number=number) + size_bytes > MAX_ARTIFACT_BYTES:
            raise UploadTooLargeError
        _, unheld_bytes = await upload_rows.count_unheld(tx.conn, grant.workspace_id)
        if unheld_bytes + size_bytes > MAX_UNHELD_BYTES:
            raise TooManyUploadsError(MAX_UNHELD, MAX_UNHELD_BYTES)
        part = PartRecord(new_id("part"), upload_id, number, size_bytes)
        await upload_rows.insert_part(tx, part)
        return part

    return await store.transact(work)


async def finish_part(store: Store, grant: Grant, part: PartRecord) -> Sequence[PartRecord]:
    """Take a part whose bytes are in the store. Returns those that it replaces. UploadNotFoundError."""

    async def work(tx: WriteTx) -> Sequence[PartRecord]:
        await _lock(tx, grant)
        await _open_upload(tx, grant, part.upload_id)
        parts = await upload_rows.list_parts(tx.conn, part.upload_id)
        replaced = [one for one in parts if one.number == part.number and one.id != part.id and one.sha256 is not None]
        await upload_rows.delete_parts(tx, [one.id for one in replaced])
        await upload_rows.update_part(tx, part)
        return replaced

    return await store.transact(work)


async def forget_part(store: Store, part: PartRecord) -> None:
    """Forget a part that did not arrive, once nothing of it is in the store."""

    async def work(tx: WriteTx) -> None:
        await upload_rows.delete_parts(tx, [part.id])

    await store.transact(work)


async def complete_upload(store: Store, grant: Grant, upload_id: str, listed: Sequence[ListedPart]) -> Completed:
    """Make these parts, in this order, the content of the grant's key. Repeating it changes nothing.

    UploadNotFoundError; InvalidPartError; UploadHeldError if a job holds what the key named before.
    """

    async def work(tx: WriteTx) -> Completed:
        await _lock(tx, grant)
        upload = await _upload(tx, grant, upload_id)
        present = {part.number: part for part in await upload_rows.list_parts(tx.conn, upload_id) if part.sha256}
        parts = _chosen(present, listed)
        if upload.status == COMPLETE:
            return Completed(_etag(parts))
        replaced = await _replaceable(tx, grant)
        if replaced is not None:
            await upload_rows.set_status(tx, replaced.id, GONE)
        left_over = await _left_over(tx, upload_id, parts)
        await upload_rows.set_status(tx, upload_id, COMPLETE)
        return Completed(_etag(parts), left_over, replaced)

    return await store.transact(work)


async def abort_upload(store: Store, grant: Grant, upload_id: str) -> UploadRecord:
    """Give up an upload that is not complete. Its parts are still to be removed. UploadNotFoundError."""

    async def work(tx: WriteTx) -> UploadRecord:
        await _lock(tx, grant)
        upload = await _open_upload(tx, grant, upload_id)
        await upload_rows.set_status(tx, upload_id, GONE)
        return replace(upload, status=GONE)

    return await store.transact(work)


async def _lock(tx: WriteTx, grant: Grant) -> None:
    """Let no other upload or job of the workspace change meanwhile."""
    workspace = await workspace_rows.lock_workspace(tx, grant.workspace_id)
    if not workspace.training:
        raise TrainingNotEnabledError


async def _upload(tx: WriteTx, grant: Grant, upload_id: str) -> UploadRecord:
    upload = await upload_rows.find_upload(tx.conn, grant.workspace_id, upload_id)
    if upload is None or upload.key != grant.key or upload.status == GONE:
        raise UploadNotFoundError
    return upload


async def _open_upload(tx: WriteTx, grant: Grant, upload_id: str) -> UploadRecord:
    upload = await _upload(tx, grant, upload_id)
    if upload.status != OPEN:
        raise UploadNotFoundError
    return upload


async def _replaceable(tx: WriteTx, grant: Grant) -> UploadRecord | None:
    """The upload that has the grant's key now. UploadHeldError if a job holds it."""
    complete = await upload_rows.find_complete(tx.conn, grant.workspace_id, grant.key)
    if complete is not None and await upload_rows.is_held(tx.conn, complete.id):
        raise UploadHeldError
    return complete


async def _left_over(tx: WriteTx, upload_id: str, parts: Sequence[PartRecord]) -> tuple[PartRecord, ...]:
    """Forget the parts that were not chosen."""
    ids = {part.id for part in parts}
    others = tuple(part for part in await upload_rows.list_parts(tx.conn, upload_id) if part.id not in ids)
    await upload_rows.delete_parts(tx, [part.id for part in others])
    return others


def _chosen(present: dict[int, PartRecord], listed: Sequence[ListedPart]) -> list[PartRecord]:
    numbers = [part.number for part in listed]
    if not numbers or numbers != sorted(set(numbers)):
        raise InvalidPartError("the parts must be listed once each, by ascending number")
    for part in listed:
        if part.number not in present or present[part.number].etag != part.etag:
            raise InvalidPartError(f"part {part.number} was not uploaded, or has another ETag")
    return [present[number] for number in numbers]


def _etag(parts: Sequence[PartRecord]) -> str:
    digests = b"".join(bytes.fromhex(part.etag or "") for part in parts)
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(parts)}"
