"""The cost of metrics: CPU per call in a worker and in the supervisor, per scrape and per export.

`python -m bench.studies.meters_cost`. Prints prometheus-client's multiprocess mode for comparison.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import orjson
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics.export import Metric, MetricsData, ResourceMetrics, ScopeMetrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from policy.billing import Tokens
from policy.endpoints import Target
from policy.snapshot import EndpointRow
from proxy.accounting.metering import Bill
from proxy.accounting.request_report import CallLabels, RequestReport
from proxy.accounting.reservations import ADMITTED
from proxy.accounting.slug_prices import SlugPrices
from proxy.capacity.worker_capacity import Capacity
from proxy.edges.telemetry.gen_ai_counts import GenAiCounts
from proxy.edges.telemetry.metrics import WorkerMetrics
from proxy.edges.telemetry.supervisor.totals import MetricTotals
from runtime.metrics_export.export import MAX_BATCH_POINTS
from runtime.metrics_export.points import Points
from runtime.metrics_export.streams import StreamStarts

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


@dataclass(frozen=True)
class Route:
    """The part of a slug's route that metrics read."""

    endpoint: EndpointRow
    prices: SlugPrices | None = None


async def ours(entities: int, *, otlp: bool) -> None:
    """`otlp`: metrics are also sent to a collector, so workers count for the `gen_ai.*` metrics."""
    line = Line()
    meters = WorkerMetrics(line, gen_ai=GenAiCounts() if otlp else None)
    capacity = Capacity()
    meters.watch(capacity)
    names = [f"customer-{number}" for number in range(entities)]
    labels = [
        CallLabels(method="", path="/v1/chat/completions", workspace_id="ws", external_entity_id=name, slug="acme/a")
        for name in names
    ]
    route = Route(EndpointRow("acme/a", "ep_1", "ws", Target("VENDOR_B", target_model="gpt")))
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
                upstream_s=0.0298, first_byte_s=0.02, route=route,
            )
        )  # fmt: skip
        load.leave()
        if number % FLUSH_EVERY == 0:
            meters.flush()
    worker_s = time.process_time() - started_s - line.supervisor_s
    started_s = time.process_time()
    text, _ = line.totals.text()
    scrape_s = time.process_time() - started_s
    started_s = time.process_time()
    sizes = [len(encoded(batch)) for batch in batches_of(line.totals)]
    export_s = time.process_time() - started_s
    meters.close()
    print(
        f"{entities:6} entities, {'with' if otlp else 'without'} OTLP: worker {worker_s / CALLS * 1e6:.2f} µs a call, "
        f"supervisor {line.supervisor_s / CALLS * 1e6:.2f} µs, scrape {scrape_s:.3f} s for {len(text):,} bytes,"
        f" an export {export_s:.3f} s for {sum(sizes):,} bytes in {len(sizes)} requests"
    )


def batches_of(totals: MetricTotals) -> Iterator[list[Metric]]:
    """All that an export sends of the machine's metrics."""
    points = Points(StreamStarts(1), time.time_ns())
    return points.batches(chain.from_iterable(source.collect() for source in totals.exported), MAX_BATCH_POINTS)


def encoded(batch: list[Metric]) -> bytes:
    scope = ScopeMetrics(InstrumentationScope("tollgate"), batch, "")
    data = MetricsData([ResourceMetrics(Resource({}), [scope], "")])
    return bytes(encode_metrics(data).SerializeToString())


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
        for otlp in (False, True):
            asyncio.run(ours(entities, otlp=otlp))
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": folder}
        subprocess.run([sys.executable, "-m", "bench.studies.meters_cost", "--multiprocess"], env=environ, check=True)


if __name__ == "__main__":
    main()
