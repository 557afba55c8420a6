"""Sends the metrics of a process to the collector now and then, in a thread that nothing waits for, `close` excepted.

Sums are cumulative, so what one export lacks the next one has: nothing is queued while the collector is away.

See docs/reference/metrics.md#otlp.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import chain

from opentelemetry.sdk.resources import Resource
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.daemon_threads import in_daemon_thread
from runtime.log_lines import OutageLog
from runtime.metrics_export.points import Points
from runtime.metrics_export.sender import Sender
from runtime.metrics_export.settings import MetricExportSettings
from runtime.metrics_export.streams import StreamStarts

LAST_EXPORT_S = 1.0
"""The time that a process which ends waits for the collector to take the last metrics."""
MAX_BATCH_POINTS = 4096
"""Points of one request: about 1 MB, well below what collectors take."""
log = logging.getLogger(__name__)


class ExportCounts(Collector):
    """Exports by outcome, as a metric: `exported`, or `failed`: the collector did not take all of one."""

    def __init__(self) -> None:
        self._counts = {"exported": 0, "failed": 0}

    def add(self, outcome: str) -> None:
        self._counts[outcome] += 1

    def collect(self) -> Iterator[Metric]:
        about = "Exports of metrics to the OTLP collector: exported, or failed (it did not take all of one)"
        family = CounterMetricFamily("tollgate_metric_exports", about, labels=["outcome"])
        for outcome, count in self._counts.items():
            family.add_metric([outcome], count)
        yield family


class MetricExport:
    """Exports `sources`. `prepare`, on the event loop, has them take their latest figures."""

    def __init__(
        self,
        settings: MetricExportSettings,
        resource: Resource,
        sources: Sequence[Collector],
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.counts = ExportCounts()
        self._interval_s = settings.interval_s
        self._sources = sources
        self._prepare = prepare
        self._sender = Sender(resource)
        self._starts = StreamStarts(time.time_ns())
        self._outage = OutageLog(log)
        self._exporting = threading.Lock()

    async def run(self) -> None:
        """Export until cancelled. An export that the collector holds up delays the next ones: there is one thread."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.export()

    async def export(self) -> None:
        """Take and send the latest figures. Raises nothing if the collector does not take them."""
        if self._prepare is not None:
            await self._prepare()
        await in_daemon_thread(self._export)

    async def close(self) -> None:
        """Send the last figures. Raises nothing: what else ends with the process must go on."""
        try:
            async with asyncio.timeout(LAST_EXPORT_S):
                await in_daemon_thread(self._export)
        except TimeoutError:
            log.warning(
                "The OTLP collector did not take the last metrics within %g s; the figures since the export before are"
                " lost. Check OTEL_EXPORTER_OTLP_ENDPOINT and the collector.",
                LAST_EXPORT_S,
            )
        except Exception:
            log.exception("The last metrics could not be exported; they are lost. Please report this bug.")

    def _export(self) -> None:
        with self._exporting:
            cause = self._send_all()
            self.counts.add("failed" if cause else "exported")
        if cause:
            self._outage.begins(
                f"The OTLP collector does not take metrics ({cause}); the next export has their sums, and this one is"
                " counted as tollgate_metric_exports_total{outcome=failed}. Check OTEL_EXPORTER_OTLP_ENDPOINT and the"
                " collector."
            )
        else:
            self._outage.ends("The OTLP collector takes metrics again.")

    def _send_all(self) -> str:
        """Return why the collector did not take a batch, the last one sent; "" if it took all."""
        points = Points(self._starts, self._starts.begin(time.time_ns()))
        families = chain.from_iterable(source.collect() for source in self._sources)
        cause = ""
        for batch in points.batches(families, MAX_BATCH_POINTS):
            # After a failure the other batches are made, not sent: a stream that no round reads would begin again.
            cause = cause or self._sender.send(batch)
        return cause
