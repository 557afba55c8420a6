"""Sends control's metrics to the OpenTelemetry collector. Imported only where `TOLLGATE_METRICS` asks for it.

See docs/reference/metrics.md#otlp.
"""

from collections.abc import AsyncIterator

from aiohttp import web

from control.edges.telemetry.metrics import Metrics
from runtime.background import running
from runtime.collector.resource import CONTROL_SERVICE, resource_at
from runtime.metrics_export.export import MetricExport
from runtime.metrics_export.settings import MetricExportSettings


class ControlMetricExport:
    """Exports `metrics`, which also show how often that failed. `port`: the one that control listens on."""

    def __init__(self, settings: MetricExportSettings, metrics: Metrics, port: int) -> None:
        self._export = MetricExport(settings, resource_at(CONTROL_SERVICE, port), (metrics.registry,))
        metrics.registry.register(self._export.counts)

    async def lifetime(self, _app: web.Application) -> AsyncIterator[None]:
        """Export while control runs, and once at its end."""
        async with running(self._export.run):
            yield
        await self._export.close()
