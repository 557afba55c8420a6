"""Access to the management API on the machine of `tollgate up`, by its data directory, for commands without a key."""

from pathlib import Path

from commands.connection import Access
from commands.errors import NoAccessError


def local_access(data: Path, workspace: str | None) -> Access:
    """Access to the named workspace of the `tollgate up` that serves `data`, or to the only one."""
    raise NoAccessError("TOLLGATE_API_KEY is not set: a key of type WORKSPACE_MANAGE_ALL is needed")
