"""The cost of billing: the journal on the hot path, the shipper, ingest and pages on both databases.

`python -m bench.studies.journal [--calls N] [--events N] [--page-events N]`. Figures are CPU of this process unless
they say otherwise.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from control.edges.sql.events.clock import EventClock
from control.edges.sql.events.days import first_key_of
from control.edges.sql.events.ingest import Ingest
from control.edges.sql.events.rows import page_of_events
from control.edges.sql.events.upkeep import add_days
from control.edges.sql.migrations.migrate import migrate
from control.edges.sql.store import Store
from control.records.events import EventWindow
from control.resources.spend.draws import EventDraws
from control.resources.webhook_messages import outbox
from policy.billing import BillingEvent, Tokens, columns_of
from policy.limits.settlement import Estimate, Reservation
from proxy.accounting.recovery import join_events
from proxy.edges.journal.supervisor.journal_reader import JournalReader
from proxy.edges.journal.writer import JournalWriter
from tests.control.billing import fill_events
from tests.fakes.journal import ClosedCall, OpenedCall, progress_of
from tests.postgres_server import PostgresServer, find_binaries, running_postgres

WORKSPACE_ID = "ws_01JD0000000000000000000000"
RESERVATION = Reservation(
    key="tg:{grp_01JD0000000000000000000000|acme/chat}",
    buckets=(("grp_01JD0000000000000000000000", 0b101000),),
    admitted_at_ms=1,
    reserved_tokens=600,
)
PAGES = {
    "all": EventWindow(WORKSPACE_ID, 0, 1 << 60),
    "one entity": EventWindow(WORKSPACE_ID, 0, 1 << 60, (), ("customer-7",)),
    "two keys": EventWindow(WORKSPACE_ID, 0, 1 << 60, ("tg_key00000007", "tg_key00000008")),
}


def key(number: int) -> str:
    return f"01JD{number:022d}"


def call(number: int) -> OpenedCall:
    return OpenedCall(
        event_key=key(number),
        workspace_id=WORKSPACE_ID,
        group_id="grp_01JD0000000000000000000000",
        external_entity_id="customer-42",
        api_key_prefix="tg_abcdefghijkl",
        request_id="0123456789abcdef0123456789abcdef",
        model_slug="acme/chat",
        request_metadata={"trace": "abc"},
        opened_at_ms=1,
        estimate=Estimate(600, 7_600),
        reservations=(RESERVATION,),
    )


def event(number: int, now_ms: int) -> BillingEvent:
    return BillingEvent(
        idempotency_key=f"{first_key_of(now_ms)}{number:016d}",
        workspace_id=WORKSPACE_ID,
        group_id="grp_01JD0000000000000000000000",
        external_entity_id=f"customer-{number % 1000}",
        api_key_prefix=f"tg_key{number % 1000:08d}",
        request_id="0123456789abcdef0123456789abcdef",
        model_slug="acme/chat",
        ended_at_ms=now_ms,
        status=200,
        tokens=Tokens(input=100, output=500, cached_input=20),
        request_metadata={"trace": "abc"},
    )


def bench_journal(directory: Path, calls: int) -> None:
    journal = JournalWriter(directory, "bench")
    journal.start()
    opens = [call(number) for number in range(calls)]
    closes = [closing(number) for number in range(calls)]
    slowest_s = 0.0
    thread_s = time.thread_time()
    process_s = time.process_time()
    wall_s = time.perf_counter()
    for opened, closed in zip(opens, closes, strict=True):
        began = time.perf_counter()
        journaled = journal.open(opened.record)
        journal.answered(progress_of(opened.event_key, Tokens(input=100), 2))
        journal.close(journaled, closed.record)
        slowest_s = max(slowest_s, time.perf_counter() - began)
    thread_s = time.thread_time() - thread_s
    process_s = time.process_time() - process_s
    wall_s = time.perf_counter() - wall_s
    journal.stop()
    size = sum(path.stat().st_size for path in (directory / "bench").glob("*.journal"))
    print(f"journal, open + answered + close: {thread_s / calls * 1e6:.1f} µs CPU on the loop per call, "
          f"{process_s / calls * 1e6:.1f} with the syncing thread; {wall_s / calls * 1e6:.1f} µs wall, "
          f"slowest {slowest_s * 1e3:.1f} ms; {size / calls:.0f} bytes")  # fmt: skip


async def bench_groups(directory: Path, calls: int, in_flight: int) -> None:
    """Opens and closes of `in_flight` calls a tick, with one more call open: what they share of a write."""
    journal = JournalWriter(directory, f"groups-{in_flight}")
    journal.start()
    journal.open(call(calls).record)
    thread_s = time.thread_time()
    for first in range(0, calls, in_flight):
        numbers = range(first, first + in_flight)
        opened = [journal.open(call(number).record) for number in numbers]
        await asyncio.sleep(0)  # they are written
        for journaled, number in zip(opened, numbers, strict=True):
            journal.close(journaled, closing(number).record)
        await asyncio.sleep(0)
    thread_s = time.thread_time() - thread_s
    journal.stop()
    print(f"journal, open + close, {in_flight} calls a tick: {thread_s / calls * 1e6:.1f} µs CPU on the loop per call")


def closing(number: int) -> ClosedCall:
    tokens = Tokens(input=100, output=50, cached_input=0)
    return ClosedCall(event_key=key(number), status=200, tokens=tokens, ended_at_ms=2, numbers=(number + 1,))


def bench_shipper(directory: Path, calls: int) -> None:
    reader = JournalReader(directory / "bench")
    reader.dead = True
    read = 0
    began = time.process_time()
    while not reader.finished:
        read += len(join_events(reader.read(1000)))
    took_s = time.process_time() - began
    reader.release()
    assert read == calls
    print(f"shipper, reading and pairing: {took_s / calls * 1e6:.1f} µs CPU per call in the supervisor")


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = Store.at(url)
    await migrate(store.engine)
    yield store
    await store.close()


async def bench_ingest(name: str, url: str, events: int, server: PostgresServer | None = None) -> None:
    async with opened(url) as store:
        await add_days(store)
        for senders in (1, 4):
            first = senders * 10_000_000
            now_ms = time.time_ns() // 1_000_000
            batches = iter(
                [event(n, now_ms) for n in range(start, start + 1000)] for start in range(first, first + events, 1000)
            )
            ingest = Ingest(store, 1e7, EventClock(), EventDraws().price, outbox)

            async def send(batches: Iterator[list[BillingEvent]] = batches, ingest: Ingest = ingest) -> None:
                for batch in batches:
                    await ingest.commit(columns_of(batch))

            wall_s = time.perf_counter()
            cpu_s = time.process_time()
            server_s = server_cpu_s(server)
            await asyncio.gather(*(send() for _ in range(senders)))
            wall_s = time.perf_counter() - wall_s
            cpu_s = time.process_time() - cpu_s
            server_s = server_cpu_s(server) - server_s
            print(f"{name}, ingest, {senders} at a time: {events / wall_s:,.0f} events/s, "
                  f"{cpu_s / events * 1e6:.1f} µs CPU, {server_s / events * 1e6:.1f} in its server")  # fmt: skip


def server_cpu_s(server: PostgresServer | None) -> float:
    """The CPU time of all processes of the server so far, ended ones included; 0 for SQLite, which is in ours."""
    if server is None or server.process is None:
        return 0.0
    pid = server.process.pid
    ticks = 0
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(") ")[2].split()
            if int(entry.name) == pid:
                ticks += sum(map(int, fields[11:15]))
            elif int(fields[1]) == pid:
                ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


async def bench_pages(name: str, url: str, page_events: int) -> None:
    """Read pages, on PostgreSQL all of one partition, as before decision 0045; by days: `events_at_size`."""
    have = 0
    async with opened(url) as store:
        for count in (page_events // 10, page_events):
            await fill_events(store, WORKSPACE_ID, have, count)
            have = count
            for what, window in PAGES.items():
                took = [await _page_s(store, window, (count * part // 10, "")) for part in range(10) for _ in range(3)]
                print(f"{name}, page of 100 of {count:,} events, {what}: {statistics.median(took) * 1e3:.2f} ms")


async def _page_s(store: Store, window: EventWindow, after: tuple[int, str]) -> float:
    began = time.perf_counter()
    async with store.read() as conn:
        assert await page_of_events(conn, window, after, 101)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--page-events", type=int, default=200_000, help="5000000 for the figure in the docs")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="tollgate-bench-", dir=Path.cwd()))
    try:
        bench_journal(directory / "journal", options.calls)
        for in_flight in (1, 8, 16, 64):
            asyncio.run(bench_groups(directory / "groups", options.calls // 64 * 64, in_flight))
        bench_shipper(directory / "journal", options.calls)
        url = f"sqlite+aiosqlite:///{directory}/events.db"
        asyncio.run(bench_ingest("SQLite", url, options.events))
        asyncio.run(bench_pages("SQLite", url, options.page_events))
        if find_binaries() is None:
            print("PostgreSQL: not installed, not measured")
            return
        with running_postgres() as server:
            url = asyncio.run(server.create_database("bench"))
            asyncio.run(bench_ingest("PostgreSQL (fsync off)", url, options.events, server))
            asyncio.run(bench_pages("PostgreSQL", asyncio.run(server.create_database("pages")), options.page_events))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
