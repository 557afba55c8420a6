"""The cost of metrics: CPU per call in a worker and in the supervisor, and per scrape, by number of entities.

`python -m bench.studies.meters_cost`. Prints prometheus-client's multiprocess mode for comparison.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import orjson

from policy.billing import Tokens
from proxy.accounting.metering import Bill
from proxy.accounting.request_report import CallLabels, RequestReport
from proxy.accounting.reservations import ADMITTED
from proxy.capacity.worker_capacity import Capacity
from proxy.edges.telemetry.metrics import WorkerMetrics
from proxy.edges.telemetry.supervisor.totals import MetricTotals

CALLS = 100_000
FLUSH_EVERY = 1000


class Line:
    """A line in place of the socketpair: encodes, decodes, adds up, and times the supervisor's part."""

    congested = False

    def __init__(self) -> None:
        self.totals = MetricTotals(10_000, lambda: ())
        self.supervisor_s = 0.0

    def counted(self, counts: dict[str, Any]) -> None:
        message = orjson.dumps(counts)
        started_s = time.process_time()
        self.totals.add(0, orjson.loads(message))
        self.supervisor_s += time.process_time() - started_s


async def ours(entities: int) -> None:
    line = Line()
    meters = WorkerMetrics(line)
    capacity = Capacity()
    meters.watch(capacity)
    names = [f"customer-{number}" for number in range(entities)]
    labels = [
        CallLabels(method="", path="", workspace_id="ws", external_entity_id=name, slug="acme/a") for name in names
    ]
    bill = Bill(Tokens(input=100, output=50, cached_input=20))
    started_s = time.process_time()
    for number in range(CALLS):
        load = capacity.enter()
        load.claim("ws", names[number % entities])
        meters.limit_decision(ADMITTED)
        meters.redis_round_trip(0.0003)
        meters.finished(
            RequestReport(
                labels=labels[number % entities], ended_at_ms=0, request_id="", status=200, end_cause=None,
                request_bytes=0, response_bytes=0, bill=bill, event_key="", duration_s=0.03, ours_s=0.0002,
                upstream_s=0.0298, first_byte_s=0.02,
            )
        )  # fmt: skip
        load.leave()
        if number % FLUSH_EVERY == 0:
            meters.flush()
    worker_s = time.process_time() - started_s - line.supervisor_s
    started_s = time.perf_counter()
    text = line.totals.text()
    scrape_s = time.perf_counter() - started_s
    meters.flush()
    print(
        f"{entities:6} entities: worker {worker_s / CALLS * 1e6:.2f} µs a call, "
        f"supervisor {line.supervisor_s / CALLS * 1e6:.2f} µs, scrape {scrape_s:.3f} s for {len(text):,} bytes"
    )


def multiprocess_mode() -> None:
    from prometheus_client import CollectorRegistry, Counter, Histogram

    registry = CollectorRegistry()
    labels = ["workspace", "entity", "slug", "status"]
    requests = Counter("requests", "r", labels, registry=registry).labels("ws", "e", "acme/a", "200")
    counter = Counter("tokens", "t", labels, registry=registry)
    tokens = [counter.labels("ws", "e", "acme/a", kind) for kind in "abc"]
    spreads = [Histogram(f"spread_{n}", "s", registry=registry) for n in range(3)]
    started_s = time.process_time()
    for _ in range(CALLS):
        requests.inc()
        for child in tokens:
            child.inc(50)
        for spread in spreads:
            spread.observe(0.03)
    print(f"prometheus-client's multiprocess mode: {(time.process_time() - started_s) / CALLS * 1e6:.2f} µs a call")


def main() -> None:
    if "--multiprocess" in sys.argv:
        multiprocess_mode()
        return
    for entities in (1, 1000, 10_000):
        asyncio.run(ours(entities))
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": folder}
        subprocess.run([sys.executable, "-m", "bench.studies.meters_cost", "--multiprocess"], env=environ, check=True)


if __name__ == "__main__":
    main()
