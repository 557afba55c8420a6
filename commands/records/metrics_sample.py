"""One look at a proxy's metrics, and the names of those that are read.

See docs/reference/metrics.md#proxy-metrics.
"""

from collections.abc import Mapping
from dataclasses import dataclass

REQUESTS = "platform_model_api_inference_requests_total"
TOKENS = "platform_model_api_tokens_total"
ENDED = "tollgate_request_duration_seconds_count"
IN_FLIGHT = "tollgate_inflight_requests"
PARKED = "tollgate_parked_requests"
READ = (REQUESTS, TOKENS, ENDED, IN_FLIGHT, PARKED)
"""The metrics that are read. A proxy exports the last three from its start."""

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a proxy. `at_s`: monotonic time. `values`: by metric and sorted labels."""

    at_s: float
    values: Mapping[tuple[str, Labels], float]

    def value(self, metric: str) -> float:
        """Return the value of a metric without labels."""
        return self.values.get((metric, ()), 0.0)
