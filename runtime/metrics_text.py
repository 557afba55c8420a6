"""Renders metrics as a scraper wants them: OpenMetrics, which shows exemplars, or Prometheus text.

See docs/reference/metrics.md#formats.
"""

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

OPEN_METRICS = "application/openmetrics-text"


def rendered(metrics: Collector, accept: str) -> tuple[bytes, str]:
    """The text and its content type. `accept`: the request's Accept field; "" if it has none."""
    if any(_is_wanted(item) for item in accept.split(",")):
        text: bytes = openmetrics.generate_latest(metrics)  # type: ignore[no-untyped-call]
        return text, openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(metrics), CONTENT_TYPE_LATEST


def _is_wanted(item: str) -> bool:
    """Whether one item of an Accept field asks for OpenMetrics, and does not rule it out (RFC 9110 12.5.1)."""
    media, *parameters = (part.strip().lower() for part in item.split(";"))
    return media == OPEN_METRICS and "q=0" not in parameters
