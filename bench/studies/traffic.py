"""What figures of traffic cost control: adding a batch, and showing a thousand slugs, on SQLite and PostgreSQL.

`python -m bench.studies.traffic`. CPU is that of control's process, SQLite and the parsing of the batch included.
"""

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
from sqlalchemy import text

from control.api.protocol.reports import items
from control.edges.sql.migrations.migrate import migrate
from control.edges.sql.store import Store
from control.edges.sql.traffic.tables import FIGURES
from control.resources.traffic.figures import TrafficQuery, add_traffic, read_traffic
from control.resources.traffic.steps import Period, span_of
from control.resources.workspaces import create_workspace
from policy.traffic import BUCKETS, MINUTE_MS, TrafficRow
from tests.postgres_server import find_binaries, running_postgres

SENDER = "0123456789abcdef"
SLUGS = 1000
BATCHES = ((1, 200), (20, 200), (500, 40))
"""Rows, and how often."""


async def cost(name: str, times: int, act: Callable[[], Awaitable[object]]) -> None:
    began_s, used_s = time.perf_counter(), time.process_time()
    for _ in range(times):
        await act()
    took_ms, cpu_ms = (
        1000 * (now - then) / times for now, then in ((time.perf_counter(), began_s), (time.process_time(), used_s))
    )
    print(f"{name}: {cpu_ms:.2f} ms of CPU, {took_ms:.2f} ms", flush=True)


def batch(workspace_id: str, rows: int) -> bytes:
    minute_ms = time.time_ns() // 1_000_000 // MINUTE_MS * MINUTE_MS
    one = (6, 0, 0, 100, 10, 50), tuple(range(BUCKETS))
    made = [TrafficRow(workspace_id, f"acme/m{number}", minute_ms, *one).to_wire() for number in range(rows)]
    return orjson.dumps({"rows": made})


async def fill(store: Store, workspace_id: str) -> None:
    """All steps of all slugs."""
    async with store.write() as tx:
        for period in Period:
            span = span_of(period, None, time.time_ns() // 1_000_000)
            places = json.dumps(list(range(max(SLUGS, span.count))))
            each = (
                "json_each(:places)"
                if tx.conn.dialect.name == "sqlite"
                else "json_array_elements_text(CAST(:places AS json))"
            )
            numbers = f"(SELECT CAST(value AS bigint) AS n FROM {each}) AS"
            figures = ", ".join("7" for _ in FIGURES)
            length_ms = span.steps.length_ms
            insert = (
                f"INSERT INTO traffic (workspace_id, step_s, start_ms, slug, {', '.join(FIGURES)})"
                f" SELECT '{workspace_id}', {length_ms // 1000}, {span.first_ms} + at.n * {length_ms}, 'acme/s' || s.n,"
                f" {figures} FROM {numbers} s CROSS JOIN {numbers} at WHERE s.n < {SLUGS} AND at.n < {span.count}"
            )
            await tx.conn.execute(text(insert), {"places": places})


async def study(database: str, url: str) -> None:
    store = Store.at(url)
    await migrate(store.engine)
    workspace_id = (await create_workspace(store, "acme", ["acme"]))["workspace_id"]
    number = 0
    for rows, times in BATCHES:
        body = batch(workspace_id, rows)

        async def add(body: bytes = body) -> None:
            nonlocal number
            number += 1
            sent = await items(orjson.loads(body), "rows", TrafficRow.from_wire)
            await add_traffic(store, SENDER, number, sent)

        await cost(f"{database}: a batch of {rows} rows ({len(body):,} bytes)", times, add)
    await fill(store, workspace_id)
    for period in Period:

        async def show(period: Period = period) -> None:
            chart = await read_traffic(store, workspace_id, TrafficQuery(period))
            assert all(one.figures() for one in chart.slugs)

        await cost(f"{database}: reading the {period.value} of {SLUGS} slugs", 3, show)
    await store.close()


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        asyncio.run(study("SQLite", f"sqlite+aiosqlite:///{folder}/control.db"))
    finally:
        shutil.rmtree(folder)
    if find_binaries() is None:
        sys.exit("no PostgreSQL: apt-get install postgresql")
    with running_postgres() as server:
        asyncio.run(study("PostgreSQL", asyncio.run(server.create_database("traffic"))))


if __name__ == "__main__":
    main()
