"""Scripted metrics of a proxy."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from commands.edges.metrics_reader import sample_of
from commands.records.metrics_sample import IN_FLIGHT, PARKED, REQUESTS, TOKENS, Sample

Calls = Mapping[tuple[str, str, str], int]
"""The number of calls by group, slug and status. Each took ten tokens if it was answered 200."""


def scrape(calls: Calls, in_flight: int = 0) -> bytes:
    """Prometheus text, as a proxy answers after so many calls since its start."""
    registry = CollectorRegistry()
    names = ["workspace", "external_entity_id", "model_slug"]
    requests = Counter(REQUESTS, "", [*names, "status_code"], registry=registry)
    tokens = Counter(TOKENS, "", [*names, "kind"], registry=registry)
    duration = Histogram("tollgate_request_duration_seconds", "", registry=registry)
    Gauge(IN_FLIGHT, "", registry=registry).set(in_flight)
    Gauge(PARKED, "", registry=registry).set(0)
    for (group, slug, status), count in calls.items():
        requests.labels("ws_1", group, slug, status).inc(count)
        if status == "200":
            tokens.labels("ws_1", group, slug, "output").inc(10 * count)
        for _ in range(count):
            duration.observe(0.1)
    return generate_latest(registry)


def sample(calls: Calls, at_s: float, in_flight: int = 0) -> Sample:
    return sample_of(scrape(calls, in_flight), at_s)
