"""Alembic's entry point: runs the steps on the connection and in the transaction that `database.migrate` opened."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transaction_per_migration=False)
with context.begin_transaction():
    context.run_migrations()
