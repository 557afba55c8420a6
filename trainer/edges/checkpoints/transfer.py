"""Puts a job's checkpoints into the store. Blocking; every byte is verified by its digest.

A checkpoint is in the store once its manifest is: that is written after every file was read back from the store, and
after another look at the disk has shown that nothing changed from the first byte to the last.
"""

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from policy.training.reports import CheckpointFile, Restore
from policy.training.store_keys import location, manifest_key, restored_key, store_key
from policy.training.wire import objects
from runtime.object_store import NotInStoreError, StoreError
from trainer.edges.checkpoints.description import ADAPTER_CONFIG, MAX_CONFIG_BYTES, Description, described
from trainer.edges.checkpoints.directory import (
    ChangedError,
    CheckpointSnapshot,
    FileState,
    files_of,
    opened_directory,
    pieces_of,
    sha256_of,
)
from trainer.edges.checkpoints.store import Store


class StoppedError(Exception):
    """The transfer was stopped: the job is removed."""


class Transfer:
    """Copies between a job's checkpoint directory and the store. What fails there is a StoreError, here an OSError."""

    def __init__(self, directory: Path, store: Store, job_id: str) -> None:
        self._directory = directory
        self._store = store
        self._job_id = job_id
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End transfers at their next piece."""
        self._stopped.set()

    def send(self, snapshot: CheckpointSnapshot) -> tuple[CheckpointFile, ...]:
        """Store and verify a checkpoint. What an earlier call, or an earlier trainer, has stored is not sent again.

        Raises ChangedError if the checkpoint changes meanwhile: what was sent of it is worth nothing then.
        """
        where = location(self._job_id, snapshot.name, snapshot.version)
        if (stored := self._stored(where, snapshot)) is not None:
            return stored
        with opened_directory(self._directory) as root:
            files = tuple(self._send_file(root, snapshot.name, file, where) for file in snapshot.files)
            if files_of(root, snapshot.name) != snapshot.files:
                raise ChangedError(snapshot.name)
        self._write_json(manifest_key(where), {"files": [file.to_wire() for file in files]})
        return files

    def discard(self, snapshot: CheckpointSnapshot) -> None:
        """Remove what was sent of a checkpoint that changed."""
        self._store.remove(location(self._job_id, snapshot.name, snapshot.version))

    def remove_others(self, snapshot: CheckpointSnapshot) -> None:
        """Remove the earlier contents of a checkpoint, also those that an earlier trainer left."""
        parent = location(self._job_id, snapshot.name, "").rstrip("/")
        for version in self._store.names(parent):
            if version != snapshot.version:
                self._store.remove(f"{parent}/{version}")

    def remove_all(self) -> None:
        self._store.remove(self._job_id)

    def describe(self, snapshot: CheckpointSnapshot) -> Description:
        """ChangedError; OSError."""
        config = next((file for file in snapshot.files if file.path == ADAPTER_CONFIG), None)
        if config is None or config.size_bytes > MAX_CONFIG_BYTES:
            return described(None if config is None else b"")
        with opened_directory(self._directory) as root:
            return described(b"".join(pieces_of(root, snapshot.name, config)))

    def restored(self) -> Restore | None:
        """Return what the job's present attempt, or an earlier one, was restored from."""
        with contextlib.suppress(NotInStoreError, ValueError, KeyError, TypeError):
            return Restore.from_wire(self._read_json(restored_key(self._job_id)))
        return None

    def note_restored(self, restore: Restore) -> None:
        """Remember it for `restored`."""
        self._write_json(restored_key(self._job_id), restore.to_wire())

    def has_content(self, snapshot: CheckpointSnapshot, files: tuple[CheckpointFile, ...]) -> bool:
        """Return whether a checkpoint on disk has exactly this content. ChangedError; OSError."""
        digests = {file.path: file for file in files}
        if _sizes(snapshot.files) != _sizes(files):
            return False
        with opened_directory(self._directory) as root:
            return all(
                sha256_of(self._pieces(root, snapshot.name, file)) == digests[file.path].sha256
                for file in snapshot.files
            )

    def _stored(self, where: str, snapshot: CheckpointSnapshot) -> tuple[CheckpointFile, ...] | None:
        """The files of a checkpoint that is in the store already. A manifest may be cut off, or lie."""
        files: tuple[CheckpointFile, ...] = ()
        with contextlib.suppress(NotInStoreError, ValueError, KeyError, TypeError):
            files = tuple(map(CheckpointFile.from_wire, objects(self._read_json(manifest_key(where)), "files")))
        if _sizes(files) != _sizes(snapshot.files):
            return None
        is_there = all(self._store.size(store_key(where, file.path)) == file.size_bytes for file in files)
        return files if is_there else None

    def _send_file(self, root: int, name: str, file: FileState, where: str) -> CheckpointFile:
        key = store_key(where, file.path)
        if self._store.size(key) == file.size_bytes:
            sha256 = sha256_of(self._pieces(root, name, file))
            if sha256_of(self._unless_stopped(self._store.read(key))) == sha256:
                return CheckpointFile(file.path, file.size_bytes, sha256)
        digest = hashlib.sha256()
        self._store.write(key, file.size_bytes, _hashed(self._pieces(root, name, file), digest))
        if sha256_of(self._unless_stopped(self._store.read(key))) != digest.hexdigest():
            raise StoreError("a file read back from the store differs from what was written")
        return CheckpointFile(file.path, file.size_bytes, digest.hexdigest())

    def _pieces(self, root: int, name: str, file: FileState) -> Iterator[bytes]:
        return self._unless_stopped(pieces_of(root, name, file))

    def _unless_stopped(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            if self._stopped.is_set():
                raise StoppedError
            yield piece

    def _write_json(self, key: str, value: Any) -> None:
        content = json.dumps(value).encode()
        self._store.write(key, len(content), iter([content]))

    def _read_json(self, key: str) -> Any:
        return json.loads(b"".join(self._store.read(key)))


def _sizes(files: Iterable[CheckpointFile | FileState]) -> dict[str, int]:
    return {file.path: file.size_bytes for file in files}


def _hashed(pieces: Iterator[bytes], digest: Any) -> Iterator[bytes]:
    for piece in pieces:
        digest.update(piece)
        yield piece
