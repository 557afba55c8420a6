"""Removal of uploads: at once when they are aborted or replaced, and of those that no job holds after a day.

What the store does not remove stays `GONE` in the database, counts for its workspace, and is tried again.

See docs/reference/training.md#uploads.
"""

from collections.abc import Iterable
from functools import partial
from typing import Protocol

from control.edges.sql import workspace_rows
from control.edges.sql.store import Store, WriteTx, now_ms
from control.edges.sql.training import upload_rows
from control.errors import CheckpointStoreUnavailableError
from control.records.training import GONE, PartRecord, UploadRecord
from policy.training.store_keys import part_key, upload_location

KEPT_MS = 86_400_000
"""The time for which an upload is kept that no job holds."""
_AT_ONCE = 100


class Files(Protocol):
    """The store of uploads."""

    async def remove(self, prefix: str) -> None:
        """Remove what is below this prefix. CheckpointStoreUnavailableError."""
        ...

    async def remove_file(self, key: str) -> None:
        """CheckpointStoreUnavailableError."""
        ...


async def remove_upload(store: Store, files: Files, upload: UploadRecord) -> bool:
    """Remove an upload that is gone. False: its files could not be removed, and it stays until the next try."""
    try:
        await files.remove(upload_location(upload.id))
    except CheckpointStoreUnavailableError:
        return False
    await store.transact(partial(upload_rows.delete_upload, upload_id=upload.id))
    return True


async def remove_parts(files: Files, parts: Iterable[PartRecord]) -> bool:
    """Remove parts from the store. False: some stay there until their upload is removed."""
    try:
        for part in parts:
            await files.remove_file(part_key(part.upload_id, part.id))
    except CheckpointStoreUnavailableError:
        return False
    return True


async def remove_unheld(store: Store, files: Files) -> int:
    """Remove the uploads that are gone, or that no job has held for their time. Returns how many were removed."""
    removed = 0
    before_ms = now_ms() - KEPT_MS
    while True:
        async with store.read() as conn:
            uploads = await upload_rows.unheld_uploads(conn, before_ms, _AT_ONCE)
        for upload in uploads:
            is_gone = await store.transact(partial(_give_up, upload=upload))
            if is_gone and not await remove_upload(store, files, upload):
                return removed
            removed += is_gone
        if len(uploads) < _AT_ONCE:
            return removed


async def _give_up(tx: WriteTx, upload: UploadRecord) -> bool:
    """Mark an upload as gone, unless a job has come to hold it."""
    await workspace_rows.lock_workspace(tx, upload.workspace_id)
    if await upload_rows.is_held(tx.conn, upload.id):
        return False
    await upload_rows.set_status(tx, upload.id, GONE)
    return True
