"""The databases of control's own tests: SQLite and PostgreSQL, migrated or empty."""

from tests.control.conftest import (
    compiled_statements,
    database_url,
    empty_url,
    migrated_file,
    migrated_original,
    migrated_postgres,
    postgres,
    postgres_copies,
    store,
)

__all__ = [
    "compiled_statements",
    "database_url",
    "empty_url",
    "migrated_file",
    "migrated_original",
    "migrated_postgres",
    "postgres",
    "postgres_copies",
    "store",
]
