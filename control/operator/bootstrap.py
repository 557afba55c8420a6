"""The operator's way to the database, for the commands that change something without a running control plane.

It finds the database (by URL, or the embedded one of a data directory), brings it up to date, and tells running proxies
of a change by the same hint that control sends.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from control.edges.process.data_directory import DataDirectory, DataDirectoryError
from control.edges.process.redis_binary import RedisServerError
from control.edges.redis.client import connect
from control.edges.redis.hints import Hints
from control.edges.sql.database import SchemaTooNewError, migrate
from control.edges.sql.database_url import embedded_file
from control.edges.sql.store import Store
from control.operator.stack import StackError
from control.resources.errors import DomainError

T = TypeVar("T")
TELLABLE = (DataDirectoryError, DomainError, SchemaTooNewError, RedisServerError, StackError, ValueError)
"""What an operator can mend: told in one line. Anything else is a bug of ours, and its traceback is wanted."""


class NoDatabaseError(DataDirectoryError):
    """There is no Tollgate database here; name the right one with --data or --database-url, or make it with
    `tollgate up` or `tollgate workspace create`."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: {' '.join((self.__doc__ or '').split())}")


@dataclass(frozen=True, slots=True)
class Database:
    """Which database an operator means, and where its proxies' hints go."""

    data: Path
    database_url: str | None
    redis_url: str | None
    environment: Mapping[str, str]
    may_create: bool = False
    """Whether a database that is not there yet is made; otherwise a mistyped path is `NoDatabaseError`."""

    def url(self) -> str:
        file = embedded_file(self.database_url) if self.database_url else DataDirectory(self.data).database
        if file is not None and not self.may_create and not file.exists():
            raise NoDatabaseError(file)
        if self.database_url:
            return self.database_url
        directory = DataDirectory(self.data)
        directory.make()
        self._make_secret_key(directory)
        return directory.database_url

    def redis_url_for_hints(self) -> str | None:
        """Where proxies listen: the Redis that was named, else that of an `up` that runs in the data directory."""
        if self.redis_url or self.database_url:
            return self.redis_url
        directory = DataDirectory(self.data)
        socket = directory.redis_socket()
        return f"unix://{socket}" if socket.exists() else None

    def _make_secret_key(self, directory: DataDirectory) -> None:
        """Before the database: a database without its key is what the data directory refuses."""
        if not self.environment.get("TOLLGATE_SECRET_KEY"):
            directory.secret_key()

    def secret_key(self) -> str:
        """TOLLGATE_SECRET_KEY, or the embedded database's own."""
        return self.environment.get("TOLLGATE_SECRET_KEY") or DataDirectory(self.data).secret_key()


async def on_store(database: Database, work: Callable[[Store], Awaitable[T]]) -> T:
    """Do `work` on the database, brought up to date first, and tell the proxies what changed."""
    database_url = database.url()
    redis_url = database.redis_url_for_hints()
    redis = connect(redis_url) if redis_url else None
    hints = Hints(redis)
    store = Store.at(database_url, hints.tell)
    await hints.start()
    try:
        await migrate(store.engine)
        return await work(store)
    finally:
        await store.close()
        await hints.close()
        if redis is not None:
            await redis.aclose()
