"""A forwarder's deliveries: an SQLite file, so that position and delivered keys change together or not at all.

The keys of three days are kept besides the position, because the list shows an event again, with a later timestamp,
when control's database was restored from a backup (decision 0019) and the receiver may have forgotten it by then.
"""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from commands.errors import ManagementError
from commands.records.billing_events import Position, epoch_s
from commands.records.progress import Progress
from runtime.file_locks import try_lock

KEYS_KEPT_S = 3 * 86_400
_ASKED_AT_ONCE = 500
_TABLES = (
    "CREATE TABLE forwarder (only INTEGER PRIMARY KEY CHECK (only = 1), purpose TEXT NOT NULL, progress TEXT NOT NULL)",
    "CREATE TABLE delivered (key TEXT PRIMARY KEY) WITHOUT ROWID",
)
_ULID_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32, as in the keys


class StateError(ManagementError):
    """The state file cannot be used for this."""


class ForwarderState:
    """The open state of one forwarder. Nobody else can open it meanwhile."""

    def __init__(self, database: sqlite3.Connection, progress: Progress) -> None:
        self._database = database
        self.progress = progress

    def known(self, keys: Sequence[str]) -> set[str]:
        """Return those of `keys` that were delivered before."""
        matches: set[str] = set()
        for start in range(0, len(keys), _ASKED_AT_ONCE):
            part = keys[start : start + _ASKED_AT_ONCE]
            marks = ",".join("?" * len(part))
            rows = self._database.execute(f"SELECT key FROM delivered WHERE key IN ({marks})", part)  # noqa: S608
            matches.update(key for (key,) in rows)
        return matches

    def save(self, progress: Progress, delivered: Iterable[str] = ()) -> None:
        """Durable when it returns."""
        oldest_s = epoch_s(progress.position.timestamp) - KEYS_KEPT_S
        with self._transaction():
            self._database.execute("UPDATE forwarder SET progress = ?", (json.dumps(asdict(progress)),))
            self._database.executemany("INSERT OR IGNORE INTO delivered VALUES (?)", ((key,) for key in delivered))
            self._database.execute("DELETE FROM delivered WHERE key < ?", (_first_ulid(oldest_s),))
        self.progress = progress

    def note_doubt(self, since_s: float | None) -> None:
        if since_s != self.progress.in_doubt_since_s:
            self.save(replace(self.progress, in_doubt_since_s=since_s))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")


@contextmanager
def opened(path: Path, purpose: Mapping[str, Any], start: str | None) -> Iterator[ForwarderState]:
    """Open the state, or make a new one that begins at `start`. Raises StateError.

    `purpose`: what is delivered where. A state serves one purpose for ever.
    """
    if start is None and not path.exists():
        raise StateError(f"{path}: there is no such state. To begin a new one, say from when, with --since")
    with _locked(path):
        _check_not_emptied(path)
        with _readable(path), closing(_connected(path)) as database:
            if not database.execute("SELECT name FROM sqlite_master").fetchall():
                _create(database, {**purpose, "start": start}, Progress(Position(start or "")))
            old_purpose, progress = _load(database)
            _check_purpose(path, old_purpose, purpose if start is None else {**purpose, "start": start})
            yield ForwarderState(database, progress)


def read_progress(path: Path) -> tuple[dict[str, Any], Progress]:
    """Read what the forwarder with this state delivers, and how far it is; also while it runs. Raises StateError.

    Open for writing, because SQLite may have to undo the save of a forwarder that died.
    """
    if not path.exists():
        raise StateError(f"{path}: there is no such state")
    with (
        _readable(path),
        closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=30)) as database,
    ):
        return _load(database)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter of a damaged schema
        raise StateError(
            f"{path}: the state cannot be read or written ({error}). Check the file and its disk"
        ) from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The lock is on a file of its own: closing a second descriptor of a database would drop SQLite's locks."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateError(f"{lock}: {error.strerror}. --state names a file in a directory that exists") from None
    try:
        if not try_lock(fd):
            raise StateError(f"{path}: another forwarder uses this state. Stop it, or wait until it has ended")
        yield
    finally:
        os.close(fd)


def _check_not_emptied(path: Path) -> None:
    """SQLite would take a file that lost its content for a new one, and everything would be delivered again."""
    if path.exists() and not path.stat().st_size:
        raise StateError(
            f"{path}: empty, so it is unknown what was delivered. Put it back; or delete it, if it was never used"
        )


def _connected(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None, timeout=30)
    database.execute("PRAGMA synchronous = FULL")
    return database


def _create(database: sqlite3.Connection, purpose: Mapping[str, Any], progress: Progress) -> None:
    database.execute("BEGIN IMMEDIATE")
    for statement in _TABLES:
        database.execute(statement)
    row = (json.dumps(purpose), json.dumps(asdict(progress)))
    database.execute("INSERT INTO forwarder VALUES (1, ?, ?)", row)
    database.execute("COMMIT")


def _load(database: sqlite3.Connection) -> tuple[dict[str, Any], Progress]:
    """Raises sqlite3.DatabaseError, also if what is stored is no progress: SQLite notices few damages itself."""
    try:
        purpose, progress = database.execute("SELECT purpose, progress FROM forwarder").fetchone()
        members = json.loads(progress)
        loaded = Progress(**{**members, "position": Position(*members["position"])})
        epoch_s(loaded.position.timestamp)
        return json.loads(purpose), loaded
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise sqlite3.DatabaseError(f"it is damaged: {error}") from None


def _check_purpose(path: Path, before: Mapping[str, Any], purpose: Mapping[str, Any]) -> None:
    for name, value in purpose.items():
        if before.get(name) != value:
            raise StateError(
                f"{path}: this state is for {name} {before.get(name)!r}, not {value!r}. Each receiver, and each way of"
                " sending to it, needs a state of its own; begin another with --state and --since"
            )


def _first_ulid(epoch_s: float) -> str:
    """The smallest ULID of this time (its first ten characters), to compare keys with."""
    rest = max(0, int(epoch_s * 1000))
    digits = ""
    for _ in range(10):
        rest, digit = divmod(rest, 32)
        digits = _ULID_DIGITS[digit] + digits
    return digits
