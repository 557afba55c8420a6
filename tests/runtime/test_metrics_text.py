"""The series that a reader of `/metrics` sees, and the format in which it gets them."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from runtime.metrics_text import rendered

TEXT_0 = "text/plain; version=0.0.4; charset=utf-8"
TEXT_1 = "text/plain; version=1.0.0; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.fixture
def metrics() -> CollectorRegistry:
    registry = CollectorRegistry()
    calls = Counter("calls_total", "Calls", ("workspace", "entity"), registry=registry)
    calls.labels("ws_a", "one").inc(3)
    calls.labels("ws_b", "two").inc(5)
    calls.labels("", "").inc(7)
    Gauge("replicas", "Replicas", ("workspace",), registry=registry).labels("ws_b").set(1)
    Gauge("in_flight", "Calls now", registry=registry).set(9)
    Histogram("seconds", "Times", registry=registry).observe(1)
    Counter("answers_total", "Answers", ("route",), registry=registry).labels("ws_a").inc()
    return registry


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_a_workspace_sees_only_series_with_its_own_label(metrics: CollectorRegistry, accept: str) -> None:
    text, _ = rendered(metrics, accept, "ws_a")
    samples = [line for line in text.decode().splitlines() if not line.startswith("#") and "_created" not in line]
    assert samples == ['calls_total{entity="one",workspace="ws_a"} 3.0']
    assert b"ws_b" not in text
    assert b"replicas" not in text


def test_a_workspace_without_series_sees_an_empty_page(metrics: CollectorRegistry) -> None:
    assert rendered(metrics, "", "ws_none")[0] == b""
    assert rendered(metrics, "application/openmetrics-text", "ws_none")[0] == b"# EOF\n"


def test_the_operator_sees_all_series(metrics: CollectorRegistry) -> None:
    text = rendered(metrics, "")[0].decode()
    for series in ('calls_total{entity="",workspace=""} 7.0', 'replicas{workspace="ws_b"} 1.0', "in_flight 9.0"):
        assert series in text


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", TEXT_0),
        ("*/*", TEXT_0),
        ("text/html", TEXT_0),
        ("text/plain", TEXT_0),
        ("text/plain;version=0.0.4", TEXT_0),
        ("text/plain; Version=1.0.0", TEXT_1),
        ("text/plain;version=1.0.0;q=0.4,text/plain;version=0.0.4;q=0.3", TEXT_1),
        ("text/plain;version=1.0.0;q=0.3,text/plain;version=0.0.4;q=0.4", TEXT_0),
        ("application/openmetrics-text", OPEN_METRICS),
        ("application/openmetrics-text;q=0", TEXT_0),
        ("application/openmetrics-text;q=0.000", TEXT_0),
        ("application/openmetrics-text;q=high", TEXT_0),
        ("application/openmetrics-text;q=0.1,text/plain;version=0.0.4", TEXT_0),
        ("application/openmetrics-text;version=0.0.1", TEXT_0),
        ("application/openmetrics-text;version=0.0.1,text/plain;version=1.0.0;q=0.1", TEXT_1),
        ('application/openmetrics-text; version="1.0.0"', OPEN_METRICS),
        ('text/plain; version="1.0.0"', TEXT_1),
        ("application/openmetrics-text;q=0.5,*/*", TEXT_0),
        ("text/plain;version=1.0.0;q=0.5,text/*;q=0.9", TEXT_0),
        (PROMETHEUS, OPEN_METRICS),
    ],
)
def test_a_scraper_gets_the_format_that_it_prefers(metrics: CollectorRegistry, accept: str, content_type: str) -> None:
    assert rendered(metrics, accept)[1] == content_type
