"""A real `tollgate control` for benchmarks, which can be killed and started again, and a database full of policy.

`fill` writes only what proxies read, the table `published`, and none of the resources behind it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import TracebackType

import orjson
from sqlalchemy import insert, text, update
from ulid import ULID

from bench.programs.processes import PROXY_CORE, Program, answers, free_port, start, wait_until
from control.edges.sql.store import Store, current_revision, now_ms
from control.edges.sql.tables import published, revision, revision_nonces
from policy.billing import BillingEvent, Tokens
from policy.snapshot import Row
from tests.postgres_server import running_postgres

INTERNAL_TOKEN = "bench" * 4
SECRET_KEY = b64encode(bytes(32)).decode()
_TOLLGATE = str(Path(sys.executable).parent / "tollgate")
_AT_ONCE = 5_000


@dataclass(slots=True)
class ControlPlane:
    """One process on a core of its own. As a context manager it runs, and stops at the end."""

    folder: Path
    database: str
    redis_url: str
    port: int = field(default_factory=free_port)
    _program: Program | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        """The settings that a proxy beside it shares."""
        return {
            "TOLLGATE_SECRET_KEY": SECRET_KEY,
            "TOLLGATE_INTERNAL_TOKEN": INTERNAL_TOKEN,
            "TOLLGATE_REDIS_URL": self.redis_url,
        }

    def start(self) -> None:
        """Start it, and return once it accepts connections."""
        self.launch()
        self.await_answers()

    def launch(self) -> None:
        """Start it without waiting for anything."""
        argv = [_TOLLGATE, "control", "--control-port", str(self.port)]
        environ = self.environ | {"TOLLGATE_DATABASE_URL": self.database}
        self._program = start("control", argv, PROXY_CORE, self.folder / "control.log", environ)

    def await_answers(self) -> None:
        """Return once it accepts connections."""
        wait_until(lambda: answers(self.port), "control", every_s=0.02)

    def kill(self) -> None:
        """SIGKILL, as in a crash."""
        if self._program is not None:
            os.killpg(self._program.popen.pid, signal.SIGKILL)
            self._program.popen.wait()
            self._program = None

    def pids(self) -> list[int]:
        return [] if self._program is None else self._program.pids()

    def make_workspace(self) -> str:
        """Create one that owns `acme/…`; returns its management key."""
        create = [_TOLLGATE, "workspace", "create", "bench", "--prefix", "acme", "--database-url", self.database]
        process = subprocess.run(create, capture_output=True, text=True, check=True, env=dict(os.environ))
        return str(json.loads(process.stdout)["api_key"])

    def __enter__(self) -> "ControlPlane":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._program is not None:
            self._program.stop()


async def policy_database(stack: ExitStack, folder: Path, rows: Iterable[Row], postgres: bool) -> tuple[str, int]:
    """A database with these rows of policy, until `stack` ends, and how many there are."""
    database = f"sqlite+aiosqlite:///{folder}/control.db"
    if postgres:
        database = await stack.enter_context(running_postgres()).create_database("bench")
    with ControlPlane(folder, database, ""):
        pass  # it migrates
    return database, await fill(database, rows)


async def fill(database: str, rows: Iterable[Row]) -> int:
    """Publish `rows`, each at a revision of its own; returns how many. The database must be migrated."""
    store = Store.at(database)
    source = iter(rows)
    number = 0
    try:
        async with store.write() as tx:
            first = await current_revision(tx.conn)
            while some := list(islice(source, _AT_ONCE)):
                values = [_values(row, first + number + place) for place, row in enumerate(some, start=1)]
                await tx.conn.execute(insert(published), values)
                number += len(some)
            await tx.conn.execute(update(revision).values(value=first + number))
            nonce = {"revision": first + number, "nonce": "filled", "published_at_ms": tx.now_ms}
            await tx.conn.execute(insert(revision_nonces), nonce)
    finally:
        await store.close()
    return number


async def size_mib(database: str) -> float:
    """Measure the table `published` with its indexes; with SQLite the whole file."""
    store = Store.at(database)
    try:
        async with store.read() as conn:
            if conn.dialect.name == "sqlite":
                query = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
            else:
                query = "SELECT pg_total_relation_size('published')"
            size_bytes = int((await conn.execute(text(query))).scalar_one())
    finally:
        await store.close()
    return size_bytes / 2**20


def _values(row: Row, number: int) -> dict[str, object]:
    body = orjson.dumps(row.body).decode()
    return {"kind": row.kind, "id": row.id, "revision": number, "body": body, "published_at_ms": now_ms()}


def billing_event(metadata: dict[str, str]) -> BillingEvent:
    """A call that has just ended, with a key of its own."""
    return BillingEvent(
        idempotency_key=str(ULID()),
        workspace_id="ws",
        group_id="grp",
        external_entity_id="customer",
        api_key_prefix="tg_000000000000",
        request_id="request",
        model_slug="acme/chat",
        ended_at_ms=time.time_ns() // 1_000_000,
        status=200,
        tokens=Tokens(input=1000, output=1000),
        request_metadata=metadata,
    )
