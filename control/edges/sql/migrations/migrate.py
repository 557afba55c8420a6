"""Migrates the database to the schema of this version.

Alembic is imported only where a step has to run: it takes a fifth of the time in which a command starts.
"""

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from control.edges.sql.database import LOCK_NOT_AVAILABLE, database_errors, sqlstate_of
from runtime.log_lines import OutageLog

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

LATEST = "0036"
"""The revision of the last migration in `versions/`."""
Direction = Literal["upgrade", "downgrade"]
_MIGRATION_LOCK = 0x7011_6A7E  # any number, the same in every process
_LOCK_TIMEOUT_MS = 2_000
LOCK_PAUSE_S = 5.0
"""The pause between two tries, so that what had to wait behind the migration can run."""
log = logging.getLogger(__name__)


class SchemaTooNewError(Exception):
    """The database was written by a newer Tollgate: run that version, or restore a backup from before the upgrade."""

    def __init__(self, revision: str) -> None:
        super().__init__(f"{self.__doc__} (schema {revision} is not known to this version)")


async def migrate(engine: AsyncEngine) -> None:
    """Migrate to the current schema. Several processes may do this at once.

    On SQLite all steps share a transaction. On PostgreSQL each has its own: one that is interrupted is run again.
    """
    if await _schema_of(engine) != LATEST:
        await _alembic(engine, "upgrade", "head")


async def migrate_down(engine: AsyncEngine, to: str = "base") -> None:
    """Undo the steps after `to`."""
    await _alembic(engine, "downgrade", to)


async def _schema_of(engine: AsyncEngine) -> str | None:
    """The schema's revision; None in a database without tables."""
    with database_errors():
        async with engine.connect() as connection:
            if not await connection.run_sync(lambda sync: inspect(sync).has_table("alembic_version")):
                return None
            return (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar()


async def _alembic(engine: AsyncEngine, direction: Direction, to: str) -> None:
    with database_errors():
        if engine.dialect.name != "postgresql":
            async with engine.connect() as connection:
                connection = await connection.execution_options(tollgate_writes=True)
                async with connection.begin():
                    await connection.run_sync(_run_steps, direction, to)
            return
        outage = OutageLog(log)
        while not await _without_waiting(engine, direction, to):
            outage.begins(
                f"The database migration waits: others hold a lock that it needs. Retrying every {LOCK_PAUSE_S:.0f} s."
                " Wait for the other migration, or end the long transactions that pg_stat_activity shows."
            )
            await asyncio.sleep(LOCK_PAUSE_S)
        outage.ends("The database migration got its locks.")


async def _without_waiting(engine: AsyncEngine, direction: Direction, to: str) -> bool:
    """Run the steps that are left, each in a transaction. False if a lock was not free in time: that step is undone.

    Whoever wants a lock that we wait for waits behind us, so we never wait for long.
    """
    async with engine.connect() as connection:
        try:
            await connection.execute(text(f"SET lock_timeout = {_LOCK_TIMEOUT_MS}"))
            await connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _MIGRATION_LOCK})
            await connection.commit()
            await connection.run_sync(_run_steps, direction, to)
            await connection.commit()
        except DBAPIError as error:
            if sqlstate_of(error) != LOCK_NOT_AVAILABLE:
                raise
            return False
        finally:
            await connection.invalidate()  # ends the session, and with it lock and timeout
    return True


def _run_steps(connection: Connection, direction: Direction, to: str) -> None:
    from alembic import command
    from alembic.config import Config as AlembicSettings
    from alembic.script import ScriptDirectory

    alembic = AlembicSettings(attributes={"connection": connection})
    alembic.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    alembic.set_main_option("path_separator", "os")
    _check_schema_is_known(connection, ScriptDirectory.from_config(alembic))
    if connection.dialect.name == "postgresql":
        connection.commit()  # what was read above began a transaction; Alembic begins its own
    (command.upgrade if direction == "upgrade" else command.downgrade)(alembic, to)


def _check_schema_is_known(connection: Connection, scripts: "ScriptDirectory") -> None:
    from alembic.runtime.migration import MigrationContext

    revisions = {script.revision for script in scripts.walk_revisions()}
    for revision in MigrationContext.configure(connection).get_current_heads():
        if revision not in revisions:
            raise SchemaTooNewError(revision)
