"""One Alembic revision per file. Each upgrades and downgrades a database that holds data."""
