"""Opens the database (SQLite or PostgreSQL), and classifies its failures.

Every failure that is not the caller's becomes `DatabaseUnavailableError`, which the API renders as 503. Parameters of
statements never reach a log or a message: they hold digests and ciphertext.
"""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
from sqlalchemy import Connection, event, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from control.edges.sql.database_url import parse
from control.errors import DatabaseReadOnlyError, DatabaseUnavailableError
from runtime.private_files import describe_closed, tighten_files

log = logging.getLogger(__name__)

SQLITE_BUSY_TIMEOUT_MS = 5_000
_SQLITE_CACHE_KIB = 16_384
"""The pages of a connection in memory, as far as it needs them. A batch of 4000 events changes up to 3000 pages, of
4 KiB; what has no room is written before its time, and read again."""
_CHECKPOINT_PAGES = 4_000
"""The pages of the write-ahead log that begin a checkpoint: 16 MB. A page that many batches change is written back
once."""
LOCK_NOT_AVAILABLE = "55P03"
_RETRYABLE_SQLSTATES = frozenset({"40001", "40P01", LOCK_NOT_AVAILABLE})  # the others: serialization failure, deadlock
_DAMAGED_FILE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_UNWRITABLE_SQLITE = frozenset(
    (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC)
)
_UNWRITABLE_SQLSTATES = frozenset(("25006", "53100"))  # a read-only transaction, disk full
_AWAY_SQLSTATE_CLASSES = ("08", "53", "57", "58", "25006", "3D000", "28")

_POSTGRES_READS_ONLY = "SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on'"


class TakenError(Exception):
    """Another row already has this value, which must be unique."""

    def __init__(self, constraint: str) -> None:
        super().__init__(self.__doc__)
        self.constraint = constraint

    def is_about(self, column: str) -> bool:
        """Return whether the column is meant. SQLite names columns, PostgreSQL a constraint named after them."""
        return column in self.constraint


class DanglingError(Exception):
    """A row refers to a missing one, or a row that others refer to was to be deleted."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


def open_engine(database_url: str) -> AsyncEngine:
    """An engine for any URL that `database_url.parse` accepts. Connects on first use."""
    url, connect_args = parse(database_url)
    if url.get_backend_name() == "sqlite":
        return _open_sqlite(url)
    return create_async_engine(
        url, hide_parameters=True, pool_pre_ping=True, pool_timeout=5, pool_recycle=1800, connect_args=connect_args
    )


def _open_sqlite(url: URL) -> AsyncEngine:
    if url.database and url.database != ":memory:":
        file = Path(url.database)
        file.parent.mkdir(parents=True, exist_ok=True)
        if opened := tighten_files(*(file.with_name(file.name + suffix) for suffix in ("", "-wal", "-shm"))):
            log.warning("%s", describe_closed(opened))
    # The connection that was used last, because its cache has the pages that are written most.
    engine = create_async_engine(url, hide_parameters=True, pool_timeout=30, pool_use_lifo=True)
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver must not begin transactions: `_begin_sqlite` does
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout={SQLITE_BUSY_TIMEOUT_MS}",
        "journal_mode=WAL",
        "synchronous=FULL",  # an acknowledged write survives a power cut
        "foreign_keys=ON",
        f"cache_size=-{_SQLITE_CACHE_KIB}",
        f"wal_autocheckpoint={_CHECKPOINT_PAGES}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """A writer takes the write lock at once: upgrading a read lock later fails instead of waiting."""
    immediate = connection.get_execution_options().get("tollgate_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


@contextmanager
def database_errors() -> Iterator[None]:
    """Raise `DatabaseUnavailableError` for driver errors where the database, not the statement, is at fault."""
    try:
        yield
    except (TimeoutError, PoolTimeoutError, OSError, asyncpg.InterfaceError) as error:
        raise DatabaseUnavailableError(_reason_of(error)) from error
    except asyncpg.PostgresError as error:
        if _is_away_sqlstate(error.sqlstate):
            kind = DatabaseReadOnlyError if error.sqlstate in _UNWRITABLE_SQLSTATES else DatabaseUnavailableError
            raise kind(_reason_of(error)) from error
        raise
    except IntegrityError as error:
        raise _broken_rule(error) from error
    except DBAPIError as error:
        if is_away(error):
            kind = DatabaseReadOnlyError if _is_unwritable(error) else DatabaseUnavailableError
            raise kind(_reason_of(error)) from error
        raise


def _reason_of(error: BaseException) -> str:
    """The driver's or server's message in one line: `password authentication failed for user "tollgate"`."""
    while isinstance(error, DBAPIError) and error.orig is not None:
        error = error.orig
    if isinstance(error, TimeoutError | PoolTimeoutError):
        return "no answer in time"
    # The first line of a PostgresError quotes no values; later lines may.
    return str(error).partition("\n")[0].rpartition("'>: ")[2] or type(error).__name__


def _broken_rule(error: IntegrityError) -> Exception:
    message = str(error.orig).partition("\n")[0]  # later lines of PostgreSQL's message quote values
    sqlstate = sqlstate_of(error)
    if sqlstate == "23505" or "UNIQUE constraint failed" in message:
        return TakenError(message)
    if sqlstate == "23503" or "FOREIGN KEY constraint failed" in message:
        return DanglingError()
    return error


def is_away(error: DBAPIError) -> bool:
    """Return whether the database is at fault, not the statement."""
    if error.connection_invalidated or isinstance(error, (OperationalError, InterfaceError)):
        return True
    if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in _DAMAGED_FILE:  # the rest of the code says in what part
        return True
    return _is_away_sqlstate(sqlstate_of(error))


def _is_unwritable(error: DBAPIError) -> bool:
    """Return whether the database can be read and not written."""
    code = getattr(error.orig, "sqlite_errorcode", 0)
    return bool(_UNWRITABLE_SQLITE & {code, code & 0xFF}) or sqlstate_of(error) in _UNWRITABLE_SQLSTATES


async def read_only_reason(conn: AsyncConnection) -> str:
    """The reason why nothing can be written, as far as a connection that only reads can tell; "" if there is none."""
    if conn.dialect.name == "sqlite":
        file = conn.engine.url.database
        is_writable = not file or file == ":memory:" or await asyncio.to_thread(os.access, file, os.W_OK)
        return "" if is_writable else "its file, or the file system, is read-only"
    replica, reads_only = (await conn.execute(text(_POSTGRES_READS_ONLY))).one()
    return "the server is a standby" if replica else "default_transaction_read_only is on" if reads_only else ""


def _is_away_sqlstate(sqlstate: str | None) -> bool:
    return sqlstate is not None and sqlstate.startswith(_AWAY_SQLSTATE_CLASSES)


def is_retryable(error: DBAPIError) -> bool:
    """Return whether the same transaction may succeed if it is retried from its start.

    Never on SQLite: a writer has waited for the lock, and meanwhile all others of this process wait behind it.
    """
    return sqlstate_of(error) in _RETRYABLE_SQLSTATES


def sqlstate_of(error: DBAPIError) -> str | None:
    """Return PostgreSQL's code for the error; None on SQLite."""
    return getattr(error.orig, "sqlstate", None)
