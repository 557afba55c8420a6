"""A look into the database that changes nothing: schema, size, clock, secrets, and the destinations of slugs and
models."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import inspect, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from control.edges.sql import secret_rows
from control.edges.sql.database import database_errors, open_engine
from control.edges.sql.database_url import embedded_file
from control.edges.sql.events.clock import EventClock
from control.edges.sql.migrations.migrate import LATEST
from control.edges.sql.tables import deployments, endpoints
from control.errors import DatabaseUnavailableError
from policy.endpoints import Target
from policy.sealing import SealedWithUnknownKeyError, unseal
from policy.snapshot import target_from_wire
from runtime.log_lines import cause_of

_DEADLINE_S = 15.0
_SECRETS_CHECKED = 100
_MOST_TARGETS = 1000
_SIZES = {
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
    "postgresql": "SELECT pg_database_size(current_database())",
}


@dataclass(frozen=True, slots=True)
class DatabaseLook:
    """`trouble`: why it cannot be read, or "". `schema` None: it has no tables yet. Of another schema no more is read.

    `ahead_s`: its clock, ahead of ours. `behind_s`: its clock, behind the latest time that events were listed up to.
    """

    trouble: str
    kind: str = ""
    schema: str | None = None
    latest_schema: str = LATEST
    size_bytes: int = 0
    ahead_s: float = 0.0
    behind_s: float = 0.0
    unreadable_secrets: int = 0
    targets: Sequence[tuple[str, Target]] = field(default_factory=tuple)
    """Slugs, and where they lead: at most a thousand."""
    replicas: Sequence[tuple[str, str]] = field(default_factory=tuple)
    """Ids of deployments, and the URLs of their replicas."""


async def look_at_database(url: str, secret_keys: Sequence[bytes]) -> DatabaseLook:
    """Read it. `secret_keys` empty: do not look at secrets. Raises DatabaseUrlError for a URL of another kind."""
    engine = _reader(url)
    try:
        async with asyncio.timeout(_DEADLINE_S):
            with database_errors():
                async with engine.connect() as conn:
                    return await _look(conn, secret_keys)
    except (DatabaseUnavailableError, SQLAlchemyError) as error:
        return DatabaseLook(_reason_of(error), engine.dialect.name)
    except TimeoutError:
        return DatabaseLook("no answer in time", engine.dialect.name)
    finally:
        with suppress(SQLAlchemyError, OSError):
            await engine.dispose()


def _reason_of(error: BaseException) -> str:
    """The first cause of an error in one line, from the driver: SQLAlchemy and our own errors name their cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return cause_of(error)


def _reader(url: str) -> AsyncEngine:
    """Open an engine that only reads. For SQLite it makes no file: it may run as another user than the product.

    A reader of a database without a write-ahead log would make one, unless told that nobody writes (SQLite, "URI
    Filenames", `immutable`).
    """
    file = embedded_file(url)
    if file is None:
        return open_engine(url)
    unused = "" if file.with_name(file.name + "-wal").exists() else "&immutable=1"
    return create_async_engine(f"sqlite+aiosqlite:///file:{quote(str(file.absolute()))}?mode=ro{unused}&uri=true")


async def _look(conn: AsyncConnection, secret_keys: Sequence[bytes]) -> DatabaseLook:
    kind = conn.dialect.name
    size: int = (await conn.execute(text(_SIZES[kind]))).scalar_one()
    if not await conn.run_sync(lambda sync: inspect(sync).has_table("alembic_version")):
        return DatabaseLook("", kind, None, size_bytes=size)
    schema = (await conn.execute(text("SELECT version_num FROM alembic_version"))).scalar()
    if schema != LATEST:
        return DatabaseLook("", kind, schema, size_bytes=size)
    before_s = time.time()
    reading = await EventClock().read(conn)
    return DatabaseLook(
        "",
        kind,
        schema,
        size_bytes=size,
        ahead_s=reading.clock_ms / 1e3 - (before_s + time.time()) / 2,
        behind_s=max(0, reading.recorded_ms - reading.clock_ms) / 1e3,
        unreadable_secrets=await _unreadable(conn, secret_keys) if secret_keys else 0,
        targets=await _targets(conn),
        replicas=await _replicas(conn),
    )


async def _unreadable(conn: AsyncConnection, secret_keys: Sequence[bytes]) -> int:
    count = 0
    for record in await secret_rows.newest(conn, _SECRETS_CHECKED):
        try:
            unseal(secret_keys, record.id, record.ciphertext)
        except SealedWithUnknownKeyError:
            count += 1
    return count


async def _targets(conn: AsyncConnection) -> list[tuple[str, Target]]:
    query = select(endpoints.c.slug, endpoints.c.target).order_by(endpoints.c.slug).limit(_MOST_TARGETS)
    return [(slug, target_from_wire(json.loads(target))) for slug, target in await conn.execute(query)]


async def _replicas(conn: AsyncConnection) -> list[tuple[str, str]]:
    query = select(deployments.c.id, deployments.c.replicas).order_by(deployments.c.id).limit(_MOST_TARGETS)
    return [(id, url) for id, replicas in await conn.execute(query) for url in json.loads(replicas)]


def has_file(url: str) -> tuple[bool, Path | None]:
    """Return whether a database can be there, and the file of an SQLite one."""
    file = embedded_file(url)
    return file is None or file.exists(), file
