"""Wires traces into a worker: the pipeline's parts are wrapped, the pipeline itself stays as it is.

`app.py` imports this only where `TOLLGATE_TRACES` asks for traces.
"""

from dataclasses import replace
from time import monotonic

from opentelemetry.trace import Tracer

from proxy.dialects.middle.sealing import SealKeys
from proxy.edges.process.channel import SupervisorLink
from proxy.edges.telemetry.metrics import WorkerMetrics
from proxy.edges.telemetry.tracing.exemplars import Exemplars
from proxy.edges.telemetry.tracing.traced_parts import (
    Handler,
    TracedCounters,
    TracedDialects,
    TracedJournal,
    TracedMeters,
    TracedReplicas,
    TracedSpend,
    TracedUpstream,
    traced_handler,
)
from proxy.parts import Parts
from proxy.pipeline import Pipeline
from runtime.collector.resource import PROXY_SERVICE
from runtime.tracing.current import add_ids_to_log_lines
from runtime.tracing.provider import Tracing
from runtime.tracing.settings import TraceSettings


class WorkerTracing:
    """A worker's tracer. `incarnation` names the worker."""

    def __init__(self, settings: TraceSettings, incarnation: str) -> None:
        self._tracing = Tracing(settings, PROXY_SERVICE, {"service.instance.id": incarnation})
        self._exemplars = Exemplars()
        add_ids_to_log_lines()

    def handlers(self, parts: Parts, meters: WorkerMetrics, seal_keys: SealKeys) -> tuple[Handler, Handler]:
        """The pipeline with spans. `meters` sends exemplars and what became of spans."""
        counts = self._tracing.counts
        exemplars = self._exemplars
        meters.traces = lambda: {"exemplars": exemplars.drain(), "spans": counts.drain()}
        return traced_pipeline(self._tracing.tracer, parts, exemplars, seal_keys)

    async def close(self, link: SupervisorLink) -> None:
        """Send the last spans to the collector, then what became of them to the supervisor."""
        await self._tracing.close()
        link.flush()


def traced_pipeline(tracer: Tracer, parts: Parts, exemplars: Exemplars, seal_keys: SealKeys) -> tuple[Handler, Handler]:
    """`handle` and `refuse` of the pipeline over `parts`, each of which records its part of a call's spans."""
    traced = replace(
        parts,
        counters=TracedCounters(parts.counters),
        spend=TracedSpend(parts.spend),
        journal=TracedJournal(parts.journal),
        upstream=TracedUpstream(parts.upstream),
        replicas=TracedReplicas(parts.replicas),
        dialects=TracedDialects(monotonic, seal_keys),
        meters=TracedMeters(parts.meters, exemplars),
    )
    pipeline = Pipeline(traced)
    return traced_handler(tracer, pipeline.handle), traced_handler(tracer, pipeline.refuse)
