"""Statements of a migration that may take minutes, such as CREATE INDEX CONCURRENTLY.

Call this inside `op.get_context().autocommit_block()`: see CONTRIBUTING.md#a-migration.
"""

from sqlalchemy import Connection

_LONGEST_S = 86_400.0


def run_long(connection: Connection, statement: str) -> None:
    """Run it on PostgreSQL without the time limit of control's other statements."""
    driver = connection.connection.dbapi_connection
    assert driver is not None
    driver.run_async(lambda asyncpg: asyncpg.execute(statement, timeout=_LONGEST_S))
