"""Counts attempts, deliveries and ends of asynchronous requests, until `WorkerMetrics` sends the counts."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from proxy.async_requests.requests import DeploymentRef
from proxy.async_requests.states import Status
from proxy.edges.telemetry.histogram_counts import HistogramCounts

QUEUED_BOUNDS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 21600.0,
    86400.0, 259200.0,
)  # fmt: skip
ATTEMPT_BOUNDS_S = (
    0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0,
)  # fmt: skip


class AsyncCounts:
    """Counts since they were last taken. A request counts as ended once, in the process that ends it."""

    def __init__(self, on_count: Callable[[], None] = lambda: None) -> None:
        """`on_count`: called when something was counted."""
        self._on_count = on_count
        self._requests: Counter[tuple[DeploymentRef, Status]] = Counter()
        self._attempts: Counter[str] = Counter()
        self._deliveries: Counter[str] = Counter()
        self._histograms = {"queued": HistogramCounts(QUEUED_BOUNDS_S), "attempt": HistogramCounts(ATTEMPT_BOUNDS_S)}

    def __bool__(self) -> bool:
        return bool(self._requests or self._attempts or self._deliveries or any(self._histograms["queued"].counts))

    def left_queue(self, queued_ms: int) -> None:
        """Count a request that is QUEUED no longer: its first attempt has begun, or it ended without one."""
        self._histograms["queued"].observe((queued_ms / 1000,))
        self._on_count()

    def attempt_started(self, deployment: DeploymentRef, queued_ms: int | None) -> None:
        """`queued_ms`: how long the request was QUEUED; None unless this is its first attempt."""
        if queued_ms is not None:
            self.left_queue(queued_ms)

    def attempt_ended(self, deployment: DeploymentRef, outcome: str, duration_s: float) -> None:
        self._attempts[outcome] += 1
        self._histograms["attempt"].observe((duration_s,))
        self._on_count()

    def request_ended(self, deployment: DeploymentRef, status: Status, count: int = 1) -> None:
        self._requests[deployment, status] += count
        self._on_count()

    def delivery(self, outcome: str) -> None:
        self._deliveries[outcome] += 1
        self._on_count()

    def drain(self) -> dict[str, Any]:
        """Return the counts, as they go over the channel, and begin again. Empty when nothing happened."""
        if not self:
            return {}
        counts: dict[str, Any] = {
            "requests": [_row(deployment, status, count) for (deployment, status), count in self._requests.items()],
            "attempts": dict(self._attempts),
            "deliveries": dict(self._deliveries),
            "histograms": {name: histogram.drain() for name, histogram in self._histograms.items()},
        }
        self._requests.clear()
        self._attempts.clear()
        self._deliveries.clear()
        return counts


def _row(deployment: DeploymentRef, status: Status, count: int) -> Sequence[str | int]:
    return (deployment.workspace_id, deployment.model_id, deployment.deployment_id, status.value, count)
