"""Fixtures for control: a database of each kind, and a running control plane on it with its own workspace.

Each database is a copy of one that was migrated once: a run needs hundreds of them.
"""

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from control.edges.sql.events.upkeep import add_days
from control.edges.sql.migrations.migrate import migrate
from control.edges.sql.store import Store
from policy.prices import DAY_MS
from tests.compiled_statements import shared_by_engines
from tests.control.billing import clock_ms
from tests.control.plane import ControlPlane, running_plane
from tests.postgres_copies import PostgresCopies
from tests.postgres_server import MISSING, PostgresServer, find_binaries, running_postgres

_numbers = itertools.count()
KINDS = ("sqlite", "postgresql")
MIGRATED = "migrated"
READY = "ready"


@pytest.fixture(scope="session", autouse=True)
def compiled_statements() -> Iterator[None]:
    """Compile each statement once, not once for each test."""
    with shared_by_engines():
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One private server for all tests that need one."""
    if find_binaries() is None:
        pytest.skip(MISSING)
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def migrated_postgres(postgres: PostgresServer) -> PostgresServer:
    """The server, with a migrated database to copy."""
    asyncio.run(_migrate(asyncio.run(postgres.create_database(MIGRATED))))
    return postgres


@pytest.fixture(scope="session")
def postgres_copies(migrated_postgres: PostgresServer) -> PostgresCopies:
    """Copies of that database, which tests use one after the other. The partitions that control creates are there."""
    asyncio.run(_add_days(asyncio.run(migrated_postgres.create_database(READY, template=MIGRATED))))
    return PostgresCopies(migrated_postgres, READY)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite database to copy."""
    path = tmp_path_factory.mktemp("migrated") / "control.db"
    asyncio.run(_migrate(_sqlite_url(path)))
    return path


@pytest.fixture(params=KINDS)
def migrated_original(request: pytest.FixtureRequest) -> PostgresCopies | Path:
    """The database to copy, once of each kind. Not async: each migrated_original is migrated in its own event loop."""
    name = "migrated_file" if request.param == "sqlite" else "postgres_copies"
    original: PostgresCopies | Path = request.getfixturevalue(name)
    return original


@pytest.fixture
async def database_url(migrated_original: PostgresCopies | Path, tmp_path: Path) -> AsyncIterator[str]:
    """A migrated database, once of each kind."""
    if isinstance(migrated_original, Path):
        shutil.copy(migrated_original, tmp_path / "control.db")
        yield _sqlite_url(tmp_path / "control.db")
        return
    async with migrated_original.one() as url:
        yield url


@pytest.fixture
async def empty_url(migrated_original: PostgresCopies | Path, tmp_path: Path) -> AsyncIterator[str]:
    """An empty database, once of each kind."""
    if isinstance(migrated_original, Path):
        yield _sqlite_url(tmp_path / "empty.db")
        return
    name = f"t{next(_numbers)}"
    yield await migrated_original.server.create_database(name)
    await migrated_original.server.drop_database(name)


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    """A store on a migrated database."""
    database = Store.at(database_url)
    yield database
    await database.close()


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    """A running control plane on each kind of database."""
    async with running_plane(database_url) as control_plane:
        yield control_plane


@pytest.fixture
async def first_day_ms(plane: ControlPlane) -> int:
    """The start of the UTC day, five days ago."""
    return (await clock_ms(plane.store) // DAY_MS - 5) * DAY_MS


@pytest.fixture
def sqlite_url(migrated_file: Path, tmp_path: Path) -> str:
    """A migrated database on SQLite only, for tests that do not depend on the database."""
    shutil.copy(migrated_file, tmp_path / "control.db")
    return _sqlite_url(tmp_path / "control.db")


@pytest.fixture
async def sqlite_plane(sqlite_url: str) -> AsyncIterator[ControlPlane]:
    """A running control plane on that."""
    async with running_plane(sqlite_url) as control_plane:
        yield control_plane


def _sqlite_url(path: Path) -> str:
    return f"sqlite+aiosqlite:///{path}"


async def _migrate(url: str) -> None:
    store = Store.at(url)
    await migrate(store.engine)
    await store.close()


async def _add_days(url: str) -> None:
    store = Store.at(url)
    await add_days(store)
    await store.close()
