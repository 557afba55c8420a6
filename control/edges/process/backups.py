"""Backups of a data directory: its database and its secret keys in a directory of their own, whole or not at all.

A backup is made beside a running product. A restore holds the lock of the directory, so that no `up` serves it; until
its last step the directory has the database from before, and from then on that of the backup.

See docs/operating.md#backup-and-restore.
"""

import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from control.edges.process.data_directory import DataDirectory, DataDirectoryError
from control.edges.sql.migrations.migrate import LATEST
from policy.sealing import SealedWithUnknownKeyError, key_ids, parse_keys, unseal
from runtime.private_files import replace_file, sync_directory, tighten_files

MANIFEST = "backup.json"
_DATABASE = "control.db"
_KEYS = "secret.key"
_FORMAT = 1


class BackupError(DataDirectoryError):
    """The backup cannot be made, or not be restored; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Describes a backup. `files`: the SHA-256 of each. `unopened`: the secrets that the keys did not open by then."""

    format: int
    tollgate: str
    schema: str
    created_at: str
    files: dict[str, str]
    unopened: int


def make_backup(directory: DataDirectory, target: Path, keys: Sequence[bytes], keys_file: Path | None) -> Manifest:
    """Copy the database and the file of the keys, if there is one, to `target`, which must not exist or be empty."""
    if not directory.database.exists():
        raise BackupError(f"{directory.database}: there is no database here; name the right directory with --data")
    _check_free(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))  # mode 0700
    try:
        with directory.changing_secret_keys():  # the keys that go with the database
            _copy_database(directory.database, fresh / _DATABASE)
            if keys_file is not None:
                replace_file(fresh / _KEYS, keys_file.read_text())
        _check_keys(fresh / _DATABASE, keys)
        schema = _schema_of(fresh / _DATABASE)
        files = {path.name: _digest(path) for path in sorted(fresh.iterdir())}
        unopened = _count_unopened(fresh / _DATABASE, keys)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        manifest = Manifest(_FORMAT, version("tollgate"), schema, now, files, unopened)
        replace_file(fresh / MANIFEST, json.dumps(asdict(manifest), indent=2) + "\n")
        os.rename(fresh, target)
        sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return manifest


def read_backup(source: Path) -> Manifest:
    """Check that the backup is whole, and of no newer version. Raises `BackupError`."""
    try:
        manifest = Manifest(**json.loads((source / MANIFEST).read_text()))
    except (OSError, ValueError, TypeError):
        raise BackupError(
            f"{source} is no backup of `tollgate backup`, or was not made completely: it has no {MANIFEST} that can be"
            " read. Nothing was changed"
        ) from None
    if manifest.format > _FORMAT or manifest.schema > LATEST:
        raise BackupError(
            f"{source} was made by Tollgate {manifest.tollgate} (schema {manifest.schema}), which is newer than this"
            f" one (schema {LATEST}). Nothing was changed. Install that version, or take an older backup"
        )
    for name, digest in manifest.files.items():
        path = source / name
        if Path(name).name != name or not path.is_file() or _digest(path) != digest:
            raise BackupError(f"{path} is missing or damaged. Nothing was changed. Take another backup")
    return manifest


def restore_backup(directory: DataDirectory, source: Path, environment_keys: Sequence[bytes]) -> Manifest:
    """Put the backup's database and keys into the directory. Raises DataDirectoryBusyError if an `up` serves it.

    `environment_keys`: those with which the product will run; empty for those of the directory. Keys that the directory
    has already stay in front: what was sealed since the backup, and is not in the database, still opens.
    """
    manifest = read_backup(source)
    directory.make()
    lock = directory.lock()
    try:
        with directory.changing_secret_keys():
            keys = environment_keys or _merged(directory.secret_key, source / _KEYS)
            if _count_unopened(source / _DATABASE, keys) > manifest.unopened:
                raise BackupError(
                    f"secrets in {source} are sealed under keys that neither it nor this shell nor {directory.path}"
                    " has. Nothing was changed. Set TOLLGATE_SECRET_KEY to the keys that the product ran with"
                )
            fresh = directory.path / f".{_DATABASE}-restored"
            shutil.copyfile(source / _DATABASE, fresh)
            tighten_files(fresh)
            _sync_file(fresh)
            if not environment_keys:
                replace_file(directory.secret_key, _text_of(directory.secret_key, source / _KEYS))
            _end_log(directory.database)
            os.rename(fresh, directory.database)
            sync_directory(directory.path)
    finally:
        os.close(lock)
    return manifest


def _check_free(target: Path) -> None:
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() or target.is_symlink():
        raise BackupError(f"{target} exists and is not an empty directory: name another one. Nothing was changed")


def _copy_database(source: Path, copy: Path) -> None:
    """Copy a database that others write: it is one of a moment (SQLite's online backup)."""
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as reader,
        closing(sqlite3.connect(copy)) as writer,
    ):
        reader.backup(writer)
        writer.execute("PRAGMA journal_mode = DELETE")  # one file
        answer = writer.execute("PRAGMA quick_check(1)").fetchone()[0]
    if answer != "ok":
        raise BackupError(f"{source} is damaged ({answer}). The last good backup is worth more: restore that")
    tighten_files(copy)
    _sync_file(copy)


def _end_log(database: Path) -> None:
    """Fold the write-ahead log into the database and remove it: one that stayed would be applied to the next one."""
    if not database.exists():
        return
    try:
        with closing(sqlite3.connect(database)) as conn:
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.DatabaseError:
        pass  # it is damaged, which may be why a backup is restored
    for suffix in ("-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)


def _schema_of(database: Path) -> str:
    try:
        with closing(sqlite3.connect(database)) as conn:
            return str(conn.execute("SELECT version_num FROM alembic_version").fetchone()[0])
    except (sqlite3.DatabaseError, TypeError):
        raise BackupError(f"{database.name} is no database of Tollgate. Nothing was changed") from None


def _check_keys(database: Path, keys: Sequence[bytes]) -> None:
    """Raise `BackupError` if control seals under a key that is not among these: then the backup would lack it."""
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as conn:
        try:
            row = conn.execute("SELECT key_ids FROM sealing_keys").fetchone()
        except sqlite3.OperationalError:  # an older version's
            return
    if row is not None and row[0].split(",")[0] not in key_ids(keys):
        raise BackupError(
            f"control seals under key {row[0].split(',')[0]}, which neither this shell nor the data directory has:"
            " the backup's secrets could not be opened. Nothing was made. Set TOLLGATE_SECRET_KEY as `tollgate up`"
            " has it, and run this again"
        )


def _count_unopened(database: Path, keys: Sequence[bytes]) -> int:
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as conn:
        values = conn.execute("SELECT id, ciphertext FROM secrets").fetchall()
    return sum(not _opens(keys, id, sealed) for id, sealed in values)


def _opens(keys: Sequence[bytes], id: str, sealed: str) -> bool:
    try:
        unseal(keys, id, sealed)
    except SealedWithUnknownKeyError:
        return False
    return True


def _merged(own: Path, other: Path) -> Sequence[bytes]:
    text = _text_of(own, other)
    return parse_keys(text) if text.strip() else ()


def _text_of(own: Path, other: Path) -> str:
    """The keys of both files, each once, in the form of such a file."""
    texts = [path.read_text() for path in (own, other) if path.exists()]
    return ",".join(dict.fromkeys(key.strip() for text in texts for key in text.split(",") if key.strip())) + "\n"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
