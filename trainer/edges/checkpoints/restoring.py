"""Writes a checkpoint from the store into a job's checkpoint directory, before the job runs. Blocking.

Other jobs may run as the same user and change the directory meanwhile: no symbolic link is followed. What is written
belongs to whom the directory belongs to.
"""

import hashlib
import os
from pathlib import Path

from policy.training.reports import CheckpointFile, Restore
from policy.training.store_keys import is_plain, is_plain_path, store_key
from runtime.object_store import NotInStoreError, StoreError
from trainer.backend import BackendAwayError, RestoreError
from trainer.edges.checkpoints.directory import CheckpointSnapshot, files_of, opened_below, opened_directory
from trainer.edges.checkpoints.store import Store
from trainer.edges.checkpoints.writing import give, make_parents, write_all

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def restore_into(directory: Path, store: Store, restore: Restore) -> CheckpointSnapshot:
    """Put the checkpoint back under its name, verified, and say how it is on disk. BackendAwayError, RestoreError."""
    if not is_plain(restore.name) or not all(is_plain_path(file.path) for file in restore.files):
        raise RestoreError(f"checkpoint {restore.name!r} has a file name that cannot be restored")
    try:
        with opened_directory(directory) as root:
            for file in restore.files:
                _restore_file(root, store, restore, file)
            return CheckpointSnapshot(restore.name, files_of(root, restore.name))
    except NotInStoreError:
        raise RestoreError(f"checkpoint {restore.name} is not in the checkpoint store any more") from None
    except StoreError as error:
        raise BackendAwayError(f"the checkpoint store {store} cannot be used ({error})") from error
    except OSError as error:
        raise RestoreError(f"checkpoint {restore.name} cannot be restored: {error.strerror}") from error


def _restore_file(root: int, store: Store, restore: Restore, file: CheckpointFile) -> None:
    path = f"{restore.name}/{file.path}"
    make_parents(root, path)
    digest = hashlib.sha256()
    with opened_below(root, path, _WRITE) as descriptor:
        give(descriptor, root)
        for piece in store.read(store_key(restore.location, file.path)):
            digest.update(piece)
            write_all(descriptor, piece)
    if digest.hexdigest() != file.sha256:
        raise RestoreError(f"checkpoint {restore.name} is damaged in the checkpoint store: {file.path} has changed")
