"""The cost of a billing event behind the worker: `python -m bench.studies.event_path [--seconds N] [--postgres]`.

Writes journals as a worker does, at several paces, below a real `tollgate up`, whose supervisor ships them to its
control. Then lists all events through the management API, and checks that each is there once. CPU is the scheduler's,
kernel and all threads included, per event. What is spent while nothing happens is told apart.
"""

import argparse
import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from bench.programs.gateway import Gateway, start_gateway
from bench.programs.processes import BenchError, free_port, treat_sigterm_as_interrupt
from bench.studies.journal import call, server_cpu_s
from bench.usage import cpu_s
from policy.billing import Tokens
from proxy.accounting.ulids import Ulids
from proxy.edges.journal.writer import JournalWriter
from tests.fakes.journal import ClosedCall, progress_of
from tests.postgres_server import PostgresServer, running_postgres

PACES = (300, 2_000, 6_000)
"""Calls a second."""
TOLLGATE = str(Path(sys.executable).parent / "tollgate")
TICK_S = 0.01
SHIPPED_S = 2.0
"""An event is in control at most this long after it is journaled."""
IDLE_S = 5.0
PARTS = ("supervisor", "control")
PAGE = 1000
HOLDBACK_S = 4


@dataclass(slots=True)
class Scene:
    """A running Tollgate, and the workspace and key to which all events belong."""

    gateway: Gateway
    workspace_id: str
    api_key: str
    server: PostgresServer | None
    ulids: Ulids
    event_count: int = 0

    def used_us(self) -> dict[str, float]:
        usage = {part: cpu_s(self.gateway.pids(part)) * 1e6 for part in PARTS}
        return usage | ({"PostgreSQL": server_cpu_s(self.server) * 1e6} if self.server else {})

    def cost(self, name: str, act: Callable[[], int]) -> None:
        """Run `act`, which returns a number of events; print the CPU per event."""
        before = self.used_us()
        count = act()
        spent = {part: (now - before[part]) / count for part, now in self.used_us().items()}
        print(f"{name}: " + ", ".join(f"{part} {us:.1f} µs" for part, us in spent.items()), flush=True)

    def idle(self) -> None:
        before = self.used_us()
        time.sleep(IDLE_S)
        spent = {part: (now - before[part]) / IDLE_S / 1000 for part, now in self.used_us().items()}
        print("idle: " + ", ".join(f"{part} {ms:.1f} ms/s" for part, ms in spent.items()), flush=True)

    def write_events(self, journal: JournalWriter, pace: int, seconds: float) -> int:
        """Journal `pace` calls a second; return when control has had the time to commit them."""
        before = self.event_count
        start_s = time.monotonic()
        while (passed_s := time.monotonic() - start_s) < seconds:
            for _ in range(int(passed_s * pace) - (self.event_count - before)):
                self._write(journal)
            time.sleep(TICK_S)
        time.sleep(SHIPPED_S)
        return self.event_count - before

    def _write(self, journal: JournalWriter) -> None:
        self.event_count += 1
        now_ms = time.time_ns() // 1_000_000
        key = self.ulids.make()
        opened = replace(call(0), event_key=key, workspace_id=self.workspace_id, opened_at_ms=now_ms, reservations=())
        journaled = journal.open(opened.record)
        journal.answered(progress_of(key, Tokens(input=100), now_ms))
        closed = ClosedCall(event_key=key, status=200, tokens=Tokens(input=100, output=50), ended_at_ms=now_ms)
        journal.close(journaled, closed.record)

    def list_events(self) -> int:
        """Read all pages; every event must be there once."""
        keys: set[str] = set()
        count = 0
        query = f"start_time={datetime.fromtimestamp(time.time() - 3600, UTC):%Y-%m-%dT%H:%M:%SZ}"
        while query:
            page = self._get(f"/v1/gateway/events?limit={PAGE}&{query}")
            keys.update(item["idempotencyKey"] for item in page["items"])
            count += len(page["items"])
            cursor = page["pagination"].get("cursor")
            query = f"cursor={cursor}" if cursor else ""
        if not count == len(keys) == self.event_count:
            raise BenchError(f"{self.event_count} events were written; listed are {count}, of {len(keys)} keys")
        return count

    def _get(self, path: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.gateway.control_port}{path}"
        request = urllib.request.Request(url, headers={"authorization": f"Bearer {self.api_key}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            value: dict[str, Any] = json.load(answer)
        return value


@contextmanager
def scene(server: PostgresServer | None) -> Iterator[Scene]:
    """A Tollgate on SQLite, or on a database of `server`."""
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-", dir=Path.cwd()) as scratch, ExitStack() as stack:
        if server is not None:
            os.environ["TOLLGATE_DATABASE_URL"] = asyncio.run(server.create_database("bench"))
        settings = {"TOLLGATE_EVENT_HOLDBACK_S": str(HOLDBACK_S)}
        gateway = start_gateway(free_port(), Path(scratch), settings=settings)
        stack.callback(gateway.program.stop)
        argv = [TOLLGATE, "workspace", "create", "events", "--prefix", "events", "--data", str(gateway.data)]
        workspace = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
        yield Scene(
            gateway, workspace["workspace_id"], workspace["api_key"], server, Ulids(time.time_ns, secrets.token_bytes)
        )


def measure(name: str, server: PostgresServer | None, seconds: float) -> None:
    with scene(server) as measured:
        print(name)
        journal = JournalWriter(measured.gateway.data / "journal", "bench")
        journal.start()
        measured.write_events(journal, PACES[0], 1)
        measured.idle()
        for pace in PACES:
            measured.cost(f"{pace} a second", partial(measured.write_events, journal, pace, seconds))
        journal.stop()
        time.sleep(HOLDBACK_S + 1)
        measured.cost("listing", measured.list_events)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="at each pace")
    parser.add_argument("--postgres", action="store_true", help="PostgreSQL instead of SQLite")
    options = parser.parse_args()
    treat_sigterm_as_interrupt()
    if not options.postgres:
        measure("SQLite", None, options.seconds)
        return
    with running_postgres() as server:
        measure("PostgreSQL (fsync off)", server, options.seconds)


if __name__ == "__main__":
    main()
