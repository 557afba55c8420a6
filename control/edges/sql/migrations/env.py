"""Alembic's entry: runs the steps on the connection (and inside the transaction) that `database.migrate` opened."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transaction_per_migration=False)
with context.begin_transaction():
    context.run_migrations()
