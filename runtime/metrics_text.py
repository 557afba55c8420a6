"""Renders metrics in the format that a scraper prefers, of all workspaces or of one.

See docs/reference/metrics.md#formats.
"""

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CONTENT_TYPE_PLAIN_1_0_0, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

ALL_WORKSPACES = "*"
"""The id in place of a workspace's for every series, those without a `workspace` label included."""
OPEN_METRICS = "application/openmetrics-text"
_TEXTS = ("text/plain", "text/*", "*/*")


def rendered(metrics: Collector, accept: str, workspace: str = ALL_WORKSPACES) -> tuple[bytes, str]:
    """The text and its content type. `accept`: the request's Accept field; "" if it has none."""
    collector = metrics if workspace == ALL_WORKSPACES else _WorkspaceSeries(metrics, workspace)
    content_type = _preferred(accept)
    if content_type == openmetrics.CONTENT_TYPE_LATEST:
        return openmetrics.generate_latest(collector), content_type  # type: ignore[no-untyped-call]
    return generate_latest(collector), content_type


class _WorkspaceSeries(Collector):
    """The series that have one workspace's label. Metrics without such a series are left out."""

    def __init__(self, metrics: Collector, workspace: str) -> None:
        self._metrics = metrics
        self._workspace = workspace

    def collect(self) -> Iterator[Metric]:
        for metric in self._metrics.collect():
            own = [sample for sample in metric.samples if sample.labels.get("workspace") == self._workspace]
            if own:
                part = Metric(metric.name, metric.documentation, metric.type, metric.unit)
                part.samples = own
                yield part


def _preferred(accept: str) -> str:
    """The content type with the highest weight in an Accept field (RFC 9110 12.5.1), the first one if several have it.

    Text of version 0.0.4, which every scraper reads, if the field names none of ours.
    """
    weights: dict[str, float] = {}
    for item in accept.split(","):
        media, *parameters = (part.strip().lower() for part in item.split(";"))
        values = dict(parameter.partition("=")[::2] for parameter in parameters)
        content_type = _content_type(media, values.get("version", "").strip('"'))
        weight = _weight(values.get("q", "1"))
        if content_type and weight > weights.get(content_type, 0):
            weights[content_type] = weight
    return max(weights, key=weights.__getitem__, default=CONTENT_TYPE_PLAIN_0_0_4)


def _content_type(media: str, version: str) -> str:
    """Our content type that an item of an Accept field names; "" if it names none."""
    if media == OPEN_METRICS and version in ("", "1.0.0"):
        return openmetrics.CONTENT_TYPE_LATEST
    if media in _TEXTS:
        return CONTENT_TYPE_PLAIN_1_0_0 if version == "1.0.0" else CONTENT_TYPE_PLAIN_0_0_4
    return ""


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
