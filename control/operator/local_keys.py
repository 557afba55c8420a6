"""Keys for commands beside a running `tollgate up`: looked up in its data directory, checked, and made if missing.

The embedded database is looked at directly, because opening it as control does takes a second. Another database is
reached by TOLLGATE_DATABASE_URL, as by the other commands that change it.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from control.edges.process.command_keys import CommandKeys
from control.edges.process.data_directory import DataDirectory
from control.edges.process.embedded_look import has_key, workspaces_in
from policy.credentials import digest_of

if TYPE_CHECKING:  # SQLAlchemy is imported when a key is made, not with each command
    from control.edges.sql.store import Store

T = TypeVar("T")
KEY_NAME = "local commands"


class LocalKeyError(Exception):
    """The database cannot be read or changed; the message says why."""


class LocalKeys:
    """The keys of one data directory, one per workspace."""

    def __init__(self, directory: DataDirectory, has_own_database: bool) -> None:
        self._directory = directory
        self._is_embedded = has_own_database
        self._keys = CommandKeys(directory)

    def workspaces(self) -> list[tuple[str, str]]:
        """(id, name) of each workspace."""
        if self._is_embedded:
            return workspaces_in(self._directory.database)
        return self._on_store(_all_workspaces)

    def of(self, workspace_id: str) -> str:
        """A living key of the workspace, with management scope."""
        key = self._keys.of(workspace_id)
        if key is not None and self._lives(workspace_id, key):
            return key
        with self._keys.changing():
            made_meanwhile = self._keys.of(workspace_id)
            if made_meanwhile is not None and self._lives(workspace_id, made_meanwhile):
                return made_meanwhile
            key = self._on_store(lambda store: _mint(store, workspace_id))
            self._keys.keep(workspace_id, key)
        return key

    def _lives(self, workspace_id: str, key: str) -> bool:
        if self._is_embedded:
            return has_key(self._directory.database, workspace_id, digest_of(key))
        return self._on_store(lambda store: _is_known(store, workspace_id, key))

    def _on_store(self, work: Callable[["Store"], Awaitable[T]]) -> T:
        from control.operator.bootstrap import OPERATOR_ERRORS, Database, on_store

        database_url = None if self._is_embedded else os.environ.get("TOLLGATE_DATABASE_URL")
        if not self._is_embedded and not database_url:
            raise LocalKeyError(
                "the database of this `tollgate up` is not in its data directory: set TOLLGATE_DATABASE_URL,"
                " or TOLLGATE_API_KEY to a key of type WORKSPACE_MANAGE_ALL"
            )
        database = Database(self._directory.path, database_url, os.environ.get("TOLLGATE_REDIS_URL"), os.environ)
        try:
            return asyncio.run(on_store(database, work))
        except OPERATOR_ERRORS as error:
            raise LocalKeyError(str(error)) from None


async def _mint(store: "Store", workspace_id: str) -> str:
    from control.resources.keys import NewWorkspaceKey, mint_key

    key, _ = await mint_key(store, workspace_id, NewWorkspaceKey(name=KEY_NAME))
    return key


async def _is_known(store: "Store", workspace_id: str, key: str) -> bool:
    from control.resources.keys import find_presented_keys

    return any(holder.workspace_id == workspace_id for holder in await find_presented_keys(store, [key]))


async def _all_workspaces(store: "Store") -> list[tuple[str, str]]:
    from control.resources.workspaces import list_workspaces

    return [(workspace["workspace_id"], workspace["name"]) for workspace in await list_workspaces(store)]
