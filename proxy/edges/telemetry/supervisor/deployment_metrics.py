"""The autoscaler's signal, calls in flight, queued and parked by deployment, and the outcomes of probes.

Only deployments that had calls in the last minutes have series, and no more than a bound; the others count together.

See docs/reference/metrics.md.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from policy.deployment_load import DeploymentLoad
from proxy.edges.telemetry.supervisor.bounded_labels import OTHER, BoundedLabels

QUIET_S = 300.0
"""The time for which a deployment without calls keeps its series: longer than any scrape interval."""
_GAUGES = (
    ("tollgate_deployment_in_flight_requests", "Calls at the deployment's replicas now"),
    ("tollgate_deployment_queued_requests", "Calls that wait for a replica to have room now"),
    ("tollgate_deployment_parked_requests", "Calls that wait for a replica to be ready now"),
)
_LABELS = ("workspace", "model_id", "deployment_id")


class Carried(Protocol):
    """The load that this machine carries: the switchboard. Both answer None for a deployment that is unknown here."""

    def load_of(self, deployment_id: str) -> DeploymentLoad | None: ...

    def workspace_of(self, deployment_id: str) -> str | None: ...


class DeploymentMetrics(Collector):
    """Metrics of deployments. `read` takes the figures on the event loop; `collect` renders the last, in a thread."""

    def __init__(
        self,
        carried: Carried,
        probe_outcomes: Mapping[str, int],
        max_deployments: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._carried = carried
        self._probe_outcomes = probe_outcomes
        self._clock = clock
        self._labels = BoundedLabels(max_deployments)
        self._called_at_s: dict[str, float] = {}
        self._figures: Mapping[tuple[str, ...], list[int]] = {}
        self._probes: Mapping[str, int] = {}

    def called(self, deployment_id: str) -> None:
        """Note that the deployment has calls now."""
        self._called_at_s[deployment_id] = self._clock()

    def read(self) -> None:
        """Take the figures of all deployments that had calls lately."""
        now_s = self._clock()
        loads = [load for id in self._called_at_s if (load := self._carried.load_of(id)) is not None]
        for load in loads:
            if load.has_calls:
                self._called_at_s[load.deployment_id] = now_s
        rows = [
            (self._carried.workspace_of(load.deployment_id) or "", load)
            for load in loads
            if now_s - self._called_at_s[load.deployment_id] <= QUIET_S
        ]
        self._called_at_s = {load.deployment_id: self._called_at_s[load.deployment_id] for _, load in rows}
        exported_ids = {labels[2] for labels in self._figures}
        self._labels.keep(
            (workspace, load.deployment_id) for workspace, load in rows if load.deployment_id in exported_ids
        )
        figures: defaultdict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
        for workspace, load in rows:
            id = self._labels.bounded(workspace, load.deployment_id)
            sums = figures[workspace, OTHER if id == OTHER else load.model_id, id]
            sums[:] = map(int.__add__, sums, (load.in_flight, load.queued, load.parked))
        self._figures = figures
        self._probes = Counter(self._probe_outcomes)

    def collect(self) -> Iterator[Metric]:
        for number, (name, about) in enumerate(_GAUGES):
            family = GaugeMetricFamily(name, about, labels=_LABELS)
            for labels, figures in self._figures.items():
                family.add_metric(labels, figures[number])
            yield family
        probes = CounterMetricFamily("tollgate_replica_probes", "Health probes of replicas", labels=["outcome"])
        for outcome, count in self._probes.items():
            probes.add_metric([outcome], count)
        yield probes
