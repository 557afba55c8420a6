"""Opens the database for commands that work without a running control plane.

Finds the database (by URL, or the embedded one of a data directory), migrates it, and publishes the same hint to
running proxies that control publishes.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from control.edges.process.data_directory import DataDirectory, DataDirectoryError
from control.edges.process.redis_binary import RedisServerError
from control.edges.redis.client import connect
from control.edges.redis.hints import HintPublisher
from control.edges.sql.database_url import embedded_file
from control.edges.sql.migrations.migrate import SchemaTooNewError, migrate
from control.edges.sql.store import Store
from control.errors import DomainError
from control.operator.stack_parts import StackError
from control.settings import control_keys
from runtime.environment import Environment
from runtime.secret_keys import has_secret_keys

T = TypeVar("T")
OPERATOR_ERRORS = (DataDirectoryError, DomainError, SchemaTooNewError, RedisServerError, StackError, ValueError)
"""Errors that the operator can fix; printed in one line. Any other error is a bug and keeps its traceback."""


class NoDatabaseError(DataDirectoryError):
    """There is no Tollgate database here; name the right one with --data or --database-url, or create it with
    `tollgate up` or `tollgate workspace create`."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: {' '.join((self.__doc__ or '').split())}")


class NoSecretKeyError(DataDirectoryError):
    """There is no such file, and this shell has no TOLLGATE_SECRET_KEY: set it to that of control, or name the data
    directory with --data. Nothing was changed."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: {' '.join((self.__doc__ or '').split())}")


@dataclass(frozen=True, slots=True)
class Database:
    """The database that a command works on, and the Redis of its proxies' hints."""

    data: Path
    database_url: str | None
    redis_url: str | None
    environment: Mapping[str, str]
    may_create: bool = False
    """True if a missing database may be created. If not, a mistyped path raises `NoDatabaseError`."""

    def url(self) -> str:
        file = embedded_file(self.database_url) if self.database_url else DataDirectory(self.data).database
        if file is not None and not self.may_create and not file.exists():
            raise NoDatabaseError(file)
        if self.database_url:
            return self.database_url
        directory = DataDirectory(self.data)
        directory.make()
        self._create_secret_key(directory)
        return directory.database_url

    def redis_url_for_hints(self) -> str | None:
        """The Redis that proxies listen to: the named one, else that of a running `up` in the data directory."""
        if self.redis_url or self.database_url:
            return self.redis_url
        directory = DataDirectory(self.data)
        socket = directory.redis_socket()
        return f"unix://{socket}" if socket.exists() else None

    def _create_secret_key(self, directory: DataDirectory) -> None:
        """Create the key before the database: the data directory refuses a database without its key."""
        if not has_secret_keys(self.environment):
            directory.make_secret_key()

    def secret_keys(self) -> Sequence[bytes]:
        """The keys that the environment names, or those of the data directory. Makes none. Raises ValueError."""
        environment = self.environment
        if not has_secret_keys(environment):
            file = DataDirectory(self.data).secret_key
            if not file.exists():
                raise NoSecretKeyError(file)
            environment = {"TOLLGATE_SECRET_KEY_FILE": str(file)}
        return control_keys(Environment(environment))


async def on_store(database: Database, work: Callable[[Store], Awaitable[T]]) -> T:
    """Migrate the database, run `work` on it, and publish a hint if it changed policy."""
    database_url = database.url()
    redis_url = database.redis_url_for_hints()
    redis = connect(redis_url) if redis_url else None
    hints = HintPublisher(redis)
    store = Store.at(database_url, hints.publish)
    await hints.start()
    try:
        await migrate(store.engine)
        return await work(store)
    finally:
        await store.close()
        await hints.close()
        if redis is not None:
            await redis.aclose()
