"""One Alembic revision per file; each goes up and down on a filled database."""
