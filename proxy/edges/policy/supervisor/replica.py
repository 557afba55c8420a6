"""Writes the machine's replica of policy: control's pages of changes become rows in a SQLite file (mode 0600).

The supervisor is the only writer; workers read through `edges/policy/directory.py`. A page is one transaction. A reset
is built in a second file and swapped in, so readers only ever see a complete replica. The file survives restarts.
Readers learn of a change from the `ReplicaStamp` (`edges/policy/replica_file.py`).
"""

import contextlib
import fcntl
import logging
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Set
from pathlib import Path

import orjson

from policy.snapshot import Row, RowKind
from proxy.edges.policy.replica_file import ReplicaStamp, connect_readonly, lock_path, stamp_path
from proxy.supervisor.refresher import ReplicaUnwritableError, ReplicaVersion

SCHEMA_VERSION = 2
"""In `PRAGMA user_version`; a file of version 1 is taken over, one of another version is rebuilt from control."""
# Not WITHOUT ROWID: there a body above 1 kB takes a page of its own, and random ids rewrite whole bodies.
_SCHEMA = """
CREATE TABLE rows (kind TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (kind, id));
CREATE TABLE standing (epoch TEXT NOT NULL, revision INTEGER NOT NULL, nonce TEXT NOT NULL);
"""
_FROM_VERSION_1 = """
BEGIN; ALTER TABLE standing ADD COLUMN nonce TEXT NOT NULL DEFAULT ''; PRAGMA user_version = 2; COMMIT;
"""
# In place: INSERT OR REPLACE would take the row out and put it elsewhere, three pages written instead of one.
_UPSERT = "INSERT INTO rows VALUES (?, ?, ?) ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body"
log = logging.getLogger(__name__)


class ReplicaInUseError(Exception):
    """Another proxy on this machine writes this replica; give each its own --replica-path or --data."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: {self.__doc__}")


class PolicyReplica:
    """The writer's side. Not safe for two threads at once; the refresher calls it from one at a time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = path
        self._lock_fd = _lock(path)
        self.stamp = ReplicaStamp(stamp_path(path), writable=True)
        self.stamp.confirm(0.0)
        self._conn, self._version = _open_or_start_anew(path)
        self.stamp.advance_generation()

    @property
    def version(self) -> ReplicaVersion:
        return self._version

    @property
    def confirmed_at_s(self) -> float:
        return self.stamp.confirmed_at_s

    def confirm(self, now_s: float) -> None:
        self.stamp.confirm(now_s)

    def begin_update(self, *, reset: bool) -> "SqliteUpdate":
        """Begin to take over one answer of control: its pages go into the update, then it is committed or dropped."""
        with self.writing():
            return _FullRebuild(self, self._path) if reset else _IncrementalUpdate(self, self._conn)

    def forget_if_damaged(self) -> bool:
        """Whether the file is damaged: then the next refresh asks for all of it, and till then what is readable serves.

        Reads the whole file; may run beside a refresh, so it uses a connection of its own.
        """
        try:
            with contextlib.closing(connect_readonly(self._path)) as conn:
                (verdict,) = conn.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            verdict = error
        if verdict == "ok":
            return False
        log.error("replica %s is damaged (%s); it is rebuilt from control", self._path, verdict)
        self._version = ReplicaVersion()
        return True

    def endpoints_among(self, slugs: Set[str]) -> Set[str]:
        """Which of these slugs exist; all of them where that cannot be told. May run beside a refresh."""
        try:
            with contextlib.closing(connect_readonly(self._path)) as conn:
                asked = ((RowKind.ENDPOINT.value, slug) for slug in slugs)
                found = [conn.execute("SELECT id FROM rows WHERE kind = ? AND id = ?", one).fetchall() for one in asked]
        except sqlite3.DatabaseError:
            return slugs
        return {row[0] for rows in found for row in rows} if self._version.loaded else slugs

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Renders the disk's troubles as ours; a damaged file is rebuilt by the next refresh."""
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            raise ReplicaUnwritableError(f"{self._path}: {error}") from None
        except sqlite3.DatabaseError as error:
            self._version = ReplicaVersion()
            raise ReplicaUnwritableError(f"{self._path}: {error}; it is rebuilt from control") from None

    def close(self) -> None:
        self._conn.close()
        self.stamp.close()
        os.close(self._lock_fd)

    def retire_file(self) -> None:
        """Before another file takes its name: the old one's log goes into it and away, or it would be found beside
        the new file. Readers hold the old file open and go on with it until they see the stamp turn.
        """
        try:
            self._conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._conn.close()
        except sqlite3.DatabaseError as error:
            log.warning("the replaced replica was damaged (%s)", error)
        _unlink(self._path, "-wal", "-shm")

    def committed(self, version: ReplicaVersion, conn: sqlite3.Connection, *, changed: bool) -> None:
        """For the drafts: this is now what the file says."""
        self._conn, self._version = conn, version
        if changed:
            self.stamp.advance_generation()


class SqliteUpdate(ABC):
    """One answer of control on its way into the file; invisible to readers until `commit`."""

    def __init__(self, replica: PolicyReplica, conn: sqlite3.Connection) -> None:
        self._replica = replica
        self._conn = conn
        self._changed = False

    def add(self, rows: Iterable[Row]) -> None:
        written, deleted = [], []
        for row in rows:
            if row.body is None:
                deleted.append((row.kind, row.id))
            else:
                written.append((row.kind, row.id, orjson.dumps(row.body)))
        self._changed = self._changed or bool(written or deleted)
        with self._replica.writing():
            self._conn.executemany("DELETE FROM rows WHERE kind = ? AND id = ?", deleted)
            self._conn.executemany(_UPSERT, written)

    def commit(self, version: ReplicaVersion) -> None:
        with self._replica.writing():
            self._commit(version)

    def _stand(self, version: ReplicaVersion) -> None:
        self._conn.execute("DELETE FROM standing")
        self._conn.execute("INSERT INTO standing VALUES (?, ?, ?)", (version.epoch, version.revision, version.nonce))

    @abstractmethod
    def _commit(self, version: ReplicaVersion) -> None: ...

    @abstractmethod
    def discard(self) -> None: ...


class _IncrementalUpdate(SqliteUpdate):
    """Changes since the replica's version: one transaction on the live file."""

    def __init__(self, replica: PolicyReplica, conn: sqlite3.Connection) -> None:
        super().__init__(replica, conn)
        conn.execute("BEGIN IMMEDIATE")

    def _commit(self, version: ReplicaVersion) -> None:
        if version == self._replica.version and not self._changed:
            self._conn.execute("ROLLBACK")  # the common case writes nothing to the disk
            return
        self._stand(version)
        self._conn.execute("COMMIT")
        self._replica.committed(version, self._conn, changed=self._changed)

    def discard(self) -> None:
        if self._conn.in_transaction:
            self._conn.execute("ROLLBACK")


class _FullRebuild(SqliteUpdate):
    """The whole picture anew, in a file beside; the rename makes it the one that readers find."""

    def __init__(self, replica: PolicyReplica, path: Path) -> None:
        self._path = path
        self._beside = path.with_name(path.name + ".new")
        _unlink(self._beside)
        conn = _create(self._beside, journal="OFF")  # synced once, at the end; a half-built file is never renamed
        conn.execute("PRAGMA synchronous = OFF")
        conn.execute("PRAGMA cache_size = -65536")
        conn.execute("BEGIN")
        super().__init__(replica, conn)

    def _commit(self, version: ReplicaVersion) -> None:
        self._stand(version)
        self._conn.execute("COMMIT")
        self._conn.close()
        _sync(self._beside)
        self._replica.retire_file()
        os.replace(self._beside, self._path)
        _sync(self._path.parent)
        self._replica.committed(version, _connect(self._path), changed=True)

    def discard(self) -> None:
        self._conn.close()
        _unlink(self._beside)


def _open_or_start_anew(path: Path) -> tuple[sqlite3.Connection, ReplicaVersion]:
    if path.exists():
        try:
            conn = _connect(path)
            return conn, _read_standing(conn)
        except sqlite3.DatabaseError as error:
            log.warning("replica %s cannot be used (%s); it is rebuilt from control", path, error)
    _unlink(path)
    return _create(path), ReplicaVersion()


def _read_standing(conn: sqlite3.Connection) -> ReplicaVersion:
    (version,) = conn.execute("PRAGMA user_version").fetchone()
    if version == 1:  # of before revisions had nonces: it serves, control away or not, until control is asked
        conn.executescript(_FROM_VERSION_1)
    elif version != SCHEMA_VERSION:
        conn.close()
        raise sqlite3.DatabaseError(f"written by another version of the proxy ({version})")
    os.chmod(_file_of(conn), 0o600)
    row = conn.execute("SELECT epoch, revision, nonce FROM standing").fetchone()
    conn.execute("SELECT kind FROM rows LIMIT 1").fetchone()
    return ReplicaVersion(*row) if row else ReplicaVersion()


def _create(path: Path, journal: str = "WAL") -> sqlite3.Connection:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    conn = _connect(path, journal)
    conn.executescript(f"{_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION};")
    return conn


def _connect(path: Path, journal: str = "WAL") -> sqlite3.Connection:
    """A writer's connection; used from whichever thread the refresher runs in, one at a time."""
    conn = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    conn.execute(f"PRAGMA journal_mode = {journal}")  # WAL: readers never wait for the writer, nor it for them
    conn.execute("PRAGMA synchronous = NORMAL")
    conn.execute("PRAGMA journal_size_limit = 4194304")
    return conn


def _file_of(conn: sqlite3.Connection) -> str:
    return str(conn.execute("PRAGMA database_list").fetchone()[2])


def _lock(path: Path) -> int:
    fd = os.open(lock_path(path), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ReplicaInUseError(path) from None
    return fd


def _unlink(path: Path, *suffixes: str) -> None:
    for suffix in suffixes or ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
