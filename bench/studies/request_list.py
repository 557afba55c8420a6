"""Times of pages of the list of requests on a real PostgreSQL: `python -m bench.studies.request_list [--rows N]`.

N rows (1 000 000, the default bound) of two workspaces over a week, four in five of the one that is asked: 200 groups,
20 slugs, 4 % refusals. Each page is read as the API reads it, with its events and prices; the first time and the median
of the next are shown. The goal is 100 ms each, on a machine that does other things, too.
"""

import argparse
import asyncio
import statistics
import time
from dataclasses import replace

from sqlalchemy import text

from control.edges.sql.migrations.migrate import migrate
from control.edges.sql.store import Store
from control.edges.sql.traffic.requests import add_requests
from control.records.traffic import RequestFilter, RequestPosition
from control.resources.traffic.requests import read_requests
from policy.traffic import ListedRequest
from tests.postgres_server import PostgresServer, running_postgres

LIMIT = 100
TIMES = 9
GOAL_MS = 100
WEEK_MS = 7 * 86_400_000
END_MS = 1_800_000_000_000
ADDED = 500
FILLED_AT_ONCE = 20_000
_WORKSPACES = """INSERT INTO workspaces (id, name, tier, billing, onboarded, created_at_ms)
    VALUES ('ws_a', 'a', 'basic', 'active', true, 1), ('ws_b', 'b', 'basic', 'active', true, 1)"""
_FILL = """INSERT INTO requests (workspace_id, timestamp_ms, id, request_id, external_entity_id, api_key_prefix, slug,
    path, status, error_code, limit_group_id, limit_type, limit_unit, limit_threshold, first_byte_us, duration_us,
    event_key, weight)
  SELECT CASE WHEN n % 5 = 0 THEN 'ws_b' ELSE 'ws_a' END,
    CAST(:end_ms AS bigint) - CAST(:week_ms AS bigint) * (CAST(:rows AS bigint) - n) / CAST(:rows AS bigint), n,
    'req_' || n, 'customer-' || (n * 7919 % 200), 'tg_' || (n * 7919 % 600), 'acme/model-' || (n * 104729 % 20),
    '/v1/chat/completions', CASE WHEN n % 2003 = 0 THEN 502 WHEN n % 25 = 3 THEN 429 ELSE 200 END, '', '', '', '',
    '', 12000, 340000, '', 1
  FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS n"""
_COUNT = "UPDATE request_count SET value = :rows"
OF = RequestFilter("ws_a")


def selections(rows: int) -> dict[str, RequestFilter]:
    """The filters by which people look for calls."""
    one_group = replace(OF, external_entity_id="customer-7")
    return {
        "newest page": OF,
        "request id": replace(OF, request_id=f"req_{rows // 2 + 1}"),
        "request id of nobody": replace(OF, request_id="req_none"),
        "group": one_group,
        "key": replace(OF, api_key_prefix="tg_7"),
        "slug": replace(OF, slug="acme/model-3"),
        "status 429": replace(OF, statuses=(429, 429)),
        "status 4xx": replace(OF, statuses=(400, 499)),
        "status 5xx": replace(OF, statuses=(500, 599)),
        "status 2xx": replace(OF, statuses=(200, 299)),
        "group and 4xx": replace(one_group, statuses=(400, 499)),
        "group and 5xx": replace(one_group, statuses=(500, 599)),
        "group and slug": replace(one_group, slug="acme/model-3"),
        "slug and 5xx": replace(OF, slug="acme/model-3", statuses=(500, 599)),
        "4xx of a day a week ago": replace(OF, statuses=(400, 499), end_ms=END_MS - WEEK_MS + 86_400_000),
        "a day in the middle": replace(OF, start_ms=END_MS - WEEK_MS // 2, end_ms=END_MS - WEEK_MS // 2 + 86_400_000),
    }


async def fill(store: Store, rows: int) -> None:
    await migrate(store.engine)
    async with store.engine.begin() as conn:
        await conn.execute(text(_WORKSPACES))
        await conn.execute(text(_COUNT), {"rows": rows})
    shared = {"rows": rows, "end_ms": END_MS, "week_ms": WEEK_MS}
    for first in range(1, rows + 1, FILLED_AT_ONCE):
        async with store.engine.begin() as conn:
            last = min(rows, first + FILLED_AT_ONCE - 1)
            await conn.execute(text(_FILL), {**shared, "first": first, "last": last})


async def measure(store: Store, name: str, selection: RequestFilter, before: RequestPosition | None = None) -> None:
    took_ms: list[float] = []
    count = 0
    for _ in range(TIMES):
        started_s = time.perf_counter()
        page = await read_requests(store, selection, before, LIMIT)
        took_ms.append((time.perf_counter() - started_s) * 1000)
        count = len(page.rows)
    median_ms = statistics.median(took_ms[1:])
    verdict = "" if median_ms <= GOAL_MS else "  TOO SLOW"
    print(f"{name:<28} {took_ms[0]:8.1f} ms first {median_ms:8.1f} ms then, {count} rows{verdict}", flush=True)


async def measure_ingest(store: Store, rows: int) -> None:
    """A batch of a proxy at the bound: as many of the oldest go."""
    for number in range(3):
        async with store.read() as conn:
            row = (await conn.execute(text("SELECT * FROM requests LIMIT 1"))).mappings().one()
        fields = {name: row[name] for name in ListedRequest._fields}
        first = rows + number * ADDED
        batch = [
            ListedRequest(**{**fields, "id": first + place, "timestamp_ms": END_MS + first + place})
            for place in range(ADDED)
        ]
        started_s = time.perf_counter()
        async with store.write() as tx:
            await add_requests(tx, batch, rows)
        print(f"{ADDED} rows added at the bound: {(time.perf_counter() - started_s) * 1000:.1f} ms", flush=True)


async def run(server: PostgresServer, rows: int, *, has_statistics: bool) -> None:
    store = Store.at(await server.create_database("requests"))
    try:
        await fill(store, rows)
        if has_statistics:
            async with store.engine.begin() as conn:
                await conn.execute(text("ANALYZE"))
        for name, selection in selections(rows).items():
            await measure(store, name, selection)
        middle = (END_MS - WEEK_MS // 2, 0)
        await measure(store, "newest page, half way down", OF, middle)
        await measure(store, "4xx, half way down", replace(OF, statuses=(400, 499)), middle)
        await measure_ingest(store, rows)
    finally:
        await store.close()
        await server.drop_database("requests")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    with running_postgres() as server:
        for has_statistics in (True, False):
            print("with statistics" if has_statistics else "without statistics, as just after a restore", flush=True)
            asyncio.run(run(server, options.rows, has_statistics=has_statistics))


if __name__ == "__main__":
    main()
