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
    TracedUpstream,
    traced_handler,
)
from proxy.pipeline import Pipeline, PipelineDependencies
from runtime.tracing.current import add_ids_to_log_lines
from runtime.tracing.provider import Tracing
from runtime.tracing.settings import TraceSettings

SERVICE = "tollgate-proxy"


class WorkerTracing:
    """A worker's tracer. `incarnation` names the worker."""

    def __init__(self, settings: TraceSettings, incarnation: str) -> None:
        self._tracing = Tracing(settings, SERVICE, {"service.instance.id": incarnation})
        self._exemplars = Exemplars()
        add_ids_to_log_lines()

    def handlers(
        self, dependencies: PipelineDependencies, meters: WorkerMetrics, seal_keys: SealKeys
    ) -> tuple[Handler, Handler]:
        """The pipeline with spans. `meters` sends exemplars and what became of spans."""
        counts, exemplars = self._tracing.counts, self._exemplars
        meters.traces = lambda: {"exemplars": exemplars.take(), "spans": counts.take()}
        return traced_pipeline(self._tracing.tracer, dependencies, exemplars, seal_keys)

    async def close(self, link: SupervisorLink) -> None:
        """Send the last spans to the collector, then what became of them to the supervisor."""
        await self._tracing.close()
        link.flush()


def traced_pipeline(
    tracer: Tracer, dependencies: PipelineDependencies, exemplars: Exemplars, seal_keys: SealKeys
) -> tuple[Handler, Handler]:
    """`handle` and `refuse` of the pipeline over `dependencies`, each of which records its part of a call's spans."""
    given = dependencies
    parts = replace(
        given,
        counters=TracedCounters(given.counters),
        journal=TracedJournal(given.journal),
        upstream=TracedUpstream(given.upstream),
        replicas=TracedReplicas(given.replicas),
        dialects=TracedDialects(monotonic, seal_keys),
        meters=TracedMeters(given.meters, exemplars),
    )
    pipeline = Pipeline(parts)
    return traced_handler(tracer, pipeline.handle), traced_handler(tracer, pipeline.refuse)
