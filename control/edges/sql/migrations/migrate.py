"""Migrates the database to the schema of this version.

Alembic is imported only where a step has to run: it takes a fifth of the time in which a command starts.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine

from control.edges.sql.database import database_errors

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

LATEST = "0008"
"""The revision of the last migration in `versions/`."""
_MIGRATION_LOCK = 0x7011_6A7E  # any number, the same in every process


class SchemaTooNewError(Exception):
    """The database was written by a newer Tollgate: run that version, or restore a backup from before the upgrade."""

    def __init__(self, found: str) -> None:
        super().__init__(f"{self.__doc__} (schema {found} is not known to this version)")


async def migrate(engine: AsyncEngine) -> None:
    """Migrate to the current schema, all steps in one transaction. Several processes may do this at once."""
    if await _schema_of(engine) != LATEST:
        await _alembic(engine, "upgrade", "head")


async def migrate_down(engine: AsyncEngine, to: str = "base") -> None:
    """Undo the steps after `to`, in one transaction."""
    await _alembic(engine, "downgrade", to)


async def _schema_of(engine: AsyncEngine) -> str | None:
    """The schema's revision; None in a database without tables."""
    with database_errors():
        async with engine.connect() as connection:
            if not await connection.run_sync(lambda sync: inspect(sync).has_table("alembic_version")):
                return None
            return (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar()


async def _alembic(engine: AsyncEngine, direction: Literal["upgrade", "downgrade"], to: str) -> None:
    with database_errors():
        async with engine.connect() as connection:
            connection = await connection.execution_options(tollgate_writes=True)
            async with connection.begin():
                if engine.dialect.name == "postgresql":
                    await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
                await connection.run_sync(_run_steps, direction, to)


def _run_steps(connection: Connection, direction: Literal["upgrade", "downgrade"], to: str) -> None:
    from alembic import command
    from alembic.config import Config as AlembicSettings
    from alembic.script import ScriptDirectory

    alembic = AlembicSettings(attributes={"connection": connection})
    alembic.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    alembic.set_main_option("path_separator", "os")
    _check_schema_is_known(connection, ScriptDirectory.from_config(alembic))
    (command.upgrade if direction == "upgrade" else command.downgrade)(alembic, to)


def _check_schema_is_known(connection: Connection, scripts: "ScriptDirectory") -> None:
    from alembic.runtime.migration import MigrationContext

    known = {script.revision for script in scripts.walk_revisions()}
    for found in MigrationContext.configure(connection).get_current_heads():
        if found not in known:
            raise SchemaTooNewError(found)
