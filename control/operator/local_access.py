"""Access to the management API on the machine of `tollgate up`, by its data directory, for commands without a key.

Each workspace gets a key of the data directory's own, `local commands`, on first use. It is kept in a file that only
the directory's owner may read, is never printed, and is made again when it was revoked.

See docs/reference/command-line.md#over-the-management-api.
"""

from collections.abc import Sequence
from pathlib import Path

from commands.connection import Access
from commands.errors import NoAccessError


class _DirectoryAccess:
    """Implements `commands.connection.LocalAccess`."""

    def __call__(self, data: Path, workspace: str | None) -> Access:
        """Access to the named workspace of the `tollgate up` that serves `data`, or to the only one."""
        from control.edges.process import up_record
        from control.edges.process.data_directory import DataDirectory, DataDirectoryError
        from control.operator.local_keys import LocalKeyError, LocalKeys

        if not data.is_dir():
            raise NoAccessError(
                f"TOLLGATE_API_KEY is not set, and there is no data directory {data}.\n"
                "Set it to a key of type WORKSPACE_MANAGE_ALL, or name the directory of `tollgate up` with --data"
            )
        try:
            directory = DataDirectory(data)
            record = up_record.read(directory)
            keys = LocalKeys(directory, record.has_own_database)
            key = keys.of(_choose(keys.workspaces(), workspace))
            return Access(record.control, key, record.proxy, record.admin, record.cert_file)
        except (DataDirectoryError, LocalKeyError) as error:
            raise NoAccessError(str(error)) from None

    def admin_url(self, data: Path) -> str:
        """The admin URL of the `tollgate up` that serves `data`: metrics of all workspaces, so none is named."""
        from control.edges.process import up_record
        from control.edges.process.data_directory import DataDirectory, DataDirectoryError

        remedy = "Name the directory of `tollgate up` with --data, or a proxy's metrics with --metrics-url"
        if not data.is_dir():
            raise NoAccessError(f"there is no data directory {data}. {remedy}")
        try:
            return up_record.read(DataDirectory(data)).admin
        except up_record.NotRunningError:
            raise NoAccessError(f"no `tollgate up` serves {data}, or it is not ready yet. {remedy}") from None
        except DataDirectoryError as error:
            raise NoAccessError(str(error)) from None


local_access = _DirectoryAccess()


def _choose(workspaces: Sequence[tuple[str, str]], name: str | None) -> str:
    """The id of the workspace that is meant, of pairs of id and name."""
    if not workspaces:
        raise NoAccessError("there is no workspace yet: create one with `tollgate workspace create`")
    if name is None and len(workspaces) == 1:
        return workspaces[0][0]
    for id, workspace_name in workspaces:
        if workspace_name == name:
            return id
    names = ", ".join(workspace_name for _, workspace_name in workspaces[:10])
    request = "name a workspace with --workspace" if name is None else f"no workspace is called {name!r}"
    raise NoAccessError(f"{request}; there are {names}{' and more' if len(workspaces) > 10 else ''}")
