"""A look into the database in a data directory without SQLAlchemy, which takes half a second to import.

Commands beside a running `tollgate up` ask here, on each run, which workspaces there are and whether their key lives.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from control.edges.process.data_directory import DataDirectoryError

_BUSY_S = 5.0


def workspaces_in(database: Path) -> list[tuple[str, str]]:
    """(id, name) of each workspace, by name. Raises DataDirectoryError."""
    return [(id, name) for id, name in _rows(database, "SELECT id, name FROM workspaces ORDER BY name", ())]


def has_key(database: Path, workspace_id: str, digest: str) -> bool:
    """Return whether the workspace has the key with this digest. Raises DataDirectoryError."""
    query = "SELECT 1 FROM api_keys WHERE digest = ? AND workspace_id = ? AND group_id IS NULL"
    return bool(_rows(database, query, (digest, workspace_id)))


def _rows(database: Path, query: str, values: Sequence[str]) -> list[tuple[str, ...]]:
    where = f"file:{quote(str(database))}?mode=ro"
    try:
        with closing(sqlite3.connect(where, uri=True, timeout=_BUSY_S)) as connection:
            return connection.execute(query, values).fetchall()
    except sqlite3.Error as error:
        raise DataDirectoryError(f"{database} cannot be read: {error}") from None
