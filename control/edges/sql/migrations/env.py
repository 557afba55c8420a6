"""Alembic's entry point: runs the steps on the connection that `migrate` opened.

On SQLite in its transaction; on PostgreSQL each step in one of its own, which a step may end for a long statement.
"""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, transaction_per_migration=connection.dialect.name == "postgresql")
with context.begin_transaction():
    context.run_migrations()
