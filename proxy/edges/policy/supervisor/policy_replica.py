"""Writes the machine's policy replica: control's pages of changes become rows in a SQLite file (mode 0600).

The supervisor is the only writer; workers read through `edges/policy/directory.py` and learn of a change from the
`ReplicaStamp`. An update is one transaction. A full rebuild is written to a second file that replaces the first, so
readers only ever see complete policy. The file survives restarts.
"""

import contextlib
import logging
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path

from policy.snapshot import Row, RowKind
from proxy.edges.policy.replica_file import SCHEMA_VERSION, ReplicaStamp, connect_readonly, lock_path, stamp_path
from proxy.edges.policy.supervisor import group_rows, row_tables
from proxy.edges.policy.supervisor.group_rows import GroupParts
from proxy.edges.policy.supervisor.row_tables import EncodedRow
from proxy.errors import ReplicaUnwritableError
from proxy.records.supervisor.policy_replica import ReplicaVersion
from runtime.file_locks import try_lock
from runtime.log_lines import cause_of

CHANGES_KEPT = 2000
"""The number of changes that the file names. A reader that missed more empties its cache."""
_VERSION_2 = """
CREATE TABLE rows (kind TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (kind, id));
CREATE TABLE standing (epoch TEXT NOT NULL, revision INTEGER NOT NULL, nonce TEXT NOT NULL);
"""
# `changes` names rows that were changed or deleted, in the order of the changes. Rows that are new are not named,
# but for prices: nobody has read them.
_SINCE_VERSION_2 = f"""
CREATE TABLE changes (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, id TEXT NOT NULL);
{group_rows.SCHEMA}
"""
_SINCE_VERSION_3 = row_tables.KEYS_AND_GROUPS
_SINCE_VERSION_4 = row_tables.GROUPS_BY_NAME
_FROM_VERSION_1 = "ALTER TABLE standing ADD COLUMN nonce TEXT NOT NULL DEFAULT '';"
_NAME = "INSERT INTO changes (kind, id) VALUES (?, ?)"
_FORGET_NAMES = f"DELETE FROM changes WHERE number <= (SELECT max(number) FROM changes) - {CHANGES_KEPT}"  # noqa: S608
log = logging.getLogger(__name__)


class ReplicaInUseError(Exception):
    """Another proxy on this machine writes this replica; give each its own --replica-path or --data."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: {self.__doc__}")


class ReplicaUnusableError(Exception):
    """the replica of policy cannot be written here; check TOLLGATE_REPLICA_PATH and who owns its directory."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{path}: {error.strerror}: {self.__doc__}")


class PolicyReplica:
    """The replica's writer. Not thread-safe: the refresher calls it from one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock_fd = _lock(path)
        except OSError as error:
            raise ReplicaUnusableError(path, error) from error
        self.stamp = ReplicaStamp(stamp_path(path), writable=True)
        self.stamp.confirm(0.0)
        self._conn, self._version = _open_or_create(path)
        self.stamp.advance_generation()

    @property
    def version(self) -> ReplicaVersion:
        return self._version

    @property
    def confirmed_at_s(self) -> float:
        return self.stamp.confirmed_at_s

    def confirm(self, now_s: float) -> None:
        with self.writing():
            self.stamp.confirm(now_s)

    def begin_update(self, *, reset: bool) -> "SqliteUpdate":
        """Begin to write one answer of control: add its pages, then commit or discard the update."""
        with self.writing():
            return _FullRebuild(self, self._path) if reset else _IncrementalUpdate(self, self._conn)

    def forget_if_damaged(self) -> bool:
        """Check the file. If it is damaged, have the next refresh fetch everything; readable rows serve until then.

        Reads the whole file. May run during a refresh, so it uses its own connection.
        """
        try:
            with contextlib.closing(connect_readonly(self._path)) as conn:
                (verdict,) = conn.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            verdict = error
        if verdict == "ok":
            return False
        log.error(
            "Policy replica %s is damaged (%s); it is rebuilt from control. Until then, calls whose rows cannot be read"
            " are answered 503. Check the disk.",
            self._path,
            verdict,
        )
        self._version = ReplicaVersion()
        return True

    def callable_among(self, names: Set[str]) -> Set[str]:
        """Return the names that are slugs or ids of present models; all of them if the replica cannot be read.

        May run during a refresh.
        """
        try:
            with contextlib.closing(connect_readonly(self._path)) as conn:
                keys = ((kind.value, name) for name in names for kind in (RowKind.ENDPOINT, RowKind.MODEL))
                results = [
                    conn.execute("SELECT id FROM rows WHERE kind = ? AND id = ?", one).fetchall() for one in keys
                ]
        except sqlite3.DatabaseError:
            return names
        return {row[0] for rows in results for row in rows} if self._version.loaded else names

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Turn errors of disk and SQLite into `ReplicaUnwritableError`. The next refresh rebuilds a damaged file."""
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
        """Close the file before another one replaces it, and remove its write-ahead log, which would be taken for the
        new file's. Readers keep the old file open until they see the generation change.
        """
        try:
            self._conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._conn.close()
        except sqlite3.DatabaseError as error:
            log.warning("The policy replica that was replaced was damaged (%s). Check the disk.", cause_of(error))
        _unlink(self._path, "-wal", "-shm")

    def committed(self, version: ReplicaVersion, conn: sqlite3.Connection, *, changed: bool) -> None:
        """Take over the live file's connection and version after an update's commit."""
        self._conn = conn
        self._version = version
        # The first reader after a commit writes a mark to the write-ahead log's index. On the event loop of a worker it
        # would wait there for a disk that stalls.
        conn.execute("SELECT epoch FROM standing").fetchall()
        if changed:
            self.stamp.advance_generation()


class SqliteUpdate(ABC):
    """One answer of control that is being written to the file. Readers see nothing of it before `commit`."""

    def __init__(self, replica: PolicyReplica, conn: sqlite3.Connection) -> None:
        self._replica = replica
        self._conn = conn
        self._changed = False

    def add(self, rows: Iterable[Row]) -> None:
        groups: list[GroupParts] = []
        encoded: list[EncodedRow] = []
        for row in rows:
            if row.kind == group_rows.GROUP:
                groups.append(group_rows.parts_of(row.id, row.body))
            else:
                encoded.append(row_tables.encode(row.kind, row.id, row.body))
        self._changed = self._changed or bool(groups or encoded)
        with self._replica.writing():
            encoded += self._write_entries(groups)
            self._write(encoded)

    def commit(self, version: ReplicaVersion) -> None:
        with self._replica.writing():
            self._commit(version)

    def _write_version(self, version: ReplicaVersion) -> None:
        self._conn.execute("DELETE FROM standing")
        self._conn.execute("INSERT INTO standing VALUES (?, ?, ?)", (version.epoch, version.revision, version.nonce))

    def _write(self, rows: Sequence[EncodedRow]) -> None:
        row_tables.write(self._conn, rows)

    @abstractmethod
    def _write_entries(self, groups: Sequence[GroupParts]) -> list[EncodedRow]:
        """Write the entries of these groups. Returns the groups' own rows that are to be written."""
        ...

    @abstractmethod
    def _commit(self, version: ReplicaVersion) -> None: ...

    @abstractmethod
    def discard(self) -> None: ...


class _IncrementalUpdate(SqliteUpdate):
    """Changes since the replica's version: one transaction on the live file."""

    def __init__(self, replica: PolicyReplica, conn: sqlite3.Connection) -> None:
        super().__init__(replica, conn)
        conn.execute("BEGIN IMMEDIATE")

    def _write(self, rows: Sequence[EncodedRow]) -> None:
        row_tables.name_known(self._conn, rows)
        super()._write(rows)

    def _write_entries(self, groups: Sequence[GroupParts]) -> list[EncodedRow]:
        """Write and name only what differs: a change of one limit publishes the whole group."""
        nodes: list[EncodedRow] = []
        for group in groups:
            body = row_tables.body_of(self._conn, group.node.kind, group.id)
            changed = group_rows.write_changed_entries(self._conn, group)
            if body is not None and group.node.body is not None:
                self._conn.executemany(_NAME, changed)
            if body is None or body != group.node.body:
                nodes.append(group.node)
        return nodes

    def _commit(self, version: ReplicaVersion) -> None:
        if version == self._replica.version and not self._changed:
            self._conn.execute("ROLLBACK")  # the usual refresh, without changes, writes nothing
            return
        self._write_version(version)
        self._conn.execute(_FORGET_NAMES)
        self._conn.execute("COMMIT")
        self._replica.committed(version, self._conn, changed=self._changed)

    def discard(self) -> None:
        if self._conn.in_transaction:
            self._conn.execute("ROLLBACK")


class _FullRebuild(SqliteUpdate):
    """All policy, written to a new file. The rename makes it the one that readers open."""

    def __init__(self, replica: PolicyReplica, path: Path) -> None:
        self._path = path
        self._new_path = path.with_name(path.name + ".new")
        _unlink(self._new_path)
        conn = _create(self._new_path, journal="OFF")  # synced once at the end; an incomplete file is never renamed
        conn.execute("PRAGMA synchronous = OFF")
        conn.execute("PRAGMA cache_size = -65536")
        conn.execute("BEGIN")
        super().__init__(replica, conn)

    def _write_entries(self, groups: Sequence[GroupParts]) -> list[EncodedRow]:
        group_rows.replace_entries(self._conn, groups)
        return [group.node for group in groups]

    def _commit(self, version: ReplicaVersion) -> None:
        self._write_version(version)
        self._conn.execute("COMMIT")
        self._conn.close()
        _sync(self._new_path)
        self._replica.retire_file()
        os.replace(self._new_path, self._path)
        _sync(self._path.parent)
        self._replica.committed(version, _connect(self._path), changed=True)

    def discard(self) -> None:
        self._conn.close()
        _unlink(self._new_path)


def _open_or_create(path: Path) -> tuple[sqlite3.Connection, ReplicaVersion]:
    if path.exists():
        try:
            return _open(path)
        except sqlite3.DatabaseError as error:
            log.warning("Policy replica %s cannot be used (%s); it is rebuilt from control.", path, cause_of(error))
    _unlink(path)
    return _create(path), ReplicaVersion()


def _open(path: Path) -> tuple[sqlite3.Connection, ReplicaVersion]:
    conn = _connect(path)
    try:
        return conn, _read_version(conn)
    except sqlite3.DatabaseError:
        conn.close()
        raise


def _read_version(conn: sqlite3.Connection) -> ReplicaVersion:
    (schema,) = conn.execute("PRAGMA user_version").fetchone()
    if schema in (1, 2, 3, 4):
        upgrade(conn, schema)
    elif schema != SCHEMA_VERSION:
        raise sqlite3.DatabaseError(f"written by another version of the proxy (schema {schema})")
    os.chmod(_file_of(conn), 0o600)
    row = conn.execute("SELECT epoch, revision, nonce FROM standing").fetchone()
    conn.execute("SELECT kind FROM rows LIMIT 1").fetchone()
    if row is None or group_rows.count_unreadable(conn):  # an older version could not read them: fetch all again
        return ReplicaVersion()
    return ReplicaVersion(*row)


def upgrade(conn: sqlite3.Connection, schema: int) -> None:
    """Upgrade the file of an older version: control may be away, and what it wrote serves until then."""
    steps = (_FROM_VERSION_1, _SINCE_VERSION_2, _SINCE_VERSION_3, _SINCE_VERSION_4)
    conn.executescript(f"BEGIN IMMEDIATE; {' '.join(steps[schema - 1 :])}")
    try:
        if schema <= 2:
            group_rows.split_groups(conn)
        if schema <= 3:
            row_tables.move_keys_and_groups(conn)
        conn.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        conn.execute("COMMIT")
    finally:
        if conn.in_transaction:
            conn.execute("ROLLBACK")


def _create(path: Path, journal: str = "WAL") -> sqlite3.Connection:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    conn = _connect(path, journal)
    tables = f"{_VERSION_2} {_SINCE_VERSION_2} {_SINCE_VERSION_3} {_SINCE_VERSION_4}"
    conn.executescript(f"{tables} PRAGMA user_version = {SCHEMA_VERSION};")
    return conn


def _connect(path: Path, journal: str = "WAL") -> sqlite3.Connection:
    """A connection that may write. Used from one thread at a time, but not always the same one."""
    conn = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    try:
        conn.execute(f"PRAGMA journal_mode = {journal}")  # with WAL neither readers nor the writer wait for each other
        conn.execute("PRAGMA synchronous = NORMAL")
        conn.execute("PRAGMA journal_size_limit = 4194304")
    except sqlite3.Error:
        conn.close()
        raise
    return conn


def _file_of(conn: sqlite3.Connection) -> str:
    return str(conn.execute("PRAGMA database_list").fetchone()[2])


def _lock(path: Path) -> int:
    fd = os.open(lock_path(path), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    if not try_lock(fd):
        os.close(fd)
        raise ReplicaInUseError(path)
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
