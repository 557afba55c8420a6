"""The admin port answers health, readiness and metrics; metrics need this machine or a metrics key."""

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from proxy.edges.telemetry.supervisor.admin_port import admin_app, is_direct_from_loopback
from proxy.errors import PolicyUnavailableError
from proxy.records.supervisor.findings import OK, Finding
from proxy.supervisor.readiness import Check, Readiness
from runtime.metrics_text import ALL_WORKSPACES, rendered

METRICS_TOKEN = "token"
METRICS_KEY = "metrics"
OTHER_KEY = "other"
UNCHECKED_KEY = "unchecked"

METRICS_ACCESS = [(None, 401), (METRICS_KEY, 200), (METRICS_TOKEN, 200), (OTHER_KEY, 403), (UNCHECKED_KEY, 503)]


def finds(finding: Finding) -> Check:
    async def check() -> Finding:
        return finding

    return check


async def metrics(accept: str, workspace: str) -> tuple[bytes, str]:
    registry = CollectorRegistry()
    calls = Gauge("tollgate_deployment_in_flight_requests", "Now", ("workspace",), registry=registry)
    calls.labels("ws_a").set(1)
    calls.labels("ws_b").set(2)
    Gauge("tollgate_inflight_requests", "Now", registry=registry)
    return rendered(registry, accept, workspace)


async def workspace_shown(credential: str) -> str | None:
    if credential == UNCHECKED_KEY:
        raise PolicyUnavailableError
    return {METRICS_KEY: "ws_a", METRICS_TOKEN: ALL_WORKSPACES}.get(credential)


def admin(**findings: Finding) -> TestClient:  # type: ignore[type-arg]
    checks = {name: finds(finding) for name, finding in findings.items()}
    return TestClient(TestServer(admin_app(Readiness(checks).report, metrics, workspace_shown)))


@pytest.mark.parametrize(
    ("findings", "status", "degraded"),
    [
        ({"policy": OK, "redis": OK}, 200, []),
        ({"policy": OK, "redis": Finding(fault="Redis does not answer")}, 503, []),
        ({"policy": OK, "hints": Finding(degraded="no subscription")}, 200, ["hints: no subscription"]),
    ],
)
async def test_only_a_fault_is_503_and_what_is_degraded_is_listed(
    findings: dict[str, Finding], status: int, degraded: list[str]
) -> None:
    async with admin(**findings) as client:
        answer = await client.get("/readyz")
        assert answer.status == status
        assert await answer.json() == {
            "ready": status == 200,
            "degraded": degraded,
            "checks": {name: finding.text for name, finding in findings.items()},
        }
        assert (await client.get("/healthz")).status == 200


async def test_metrics_are_prometheus_text() -> None:
    async with admin() as client:
        answer = await client.get("/metrics")
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert (await answer.read()).endswith(b"tollgate_inflight_requests 0.0\n")


async def test_metrics_are_open_metrics_for_a_scraper_that_accepts_them() -> None:
    """The field is Prometheus' own."""
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
    async with admin() as client:
        answer = await client.get("/metrics", headers={"Accept": accept})
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert (await answer.read()).endswith(b"tollgate_inflight_requests 0.0\n# EOF\n")


@pytest.mark.parametrize(("key", "status"), METRICS_ACCESS)
async def test_forwarded_metrics_request_needs_a_metrics_key(key: str | None, status: int) -> None:
    headers = {"X-Forwarded-For": "198.51.100.7"} | ({"Authorization": f"Bearer {key}"} if key else {})
    async with admin() as client:
        answer = await client.get("/metrics", headers=headers)
        assert answer.status == status
        assert status == 200 or "error" in await answer.json()


@pytest.mark.parametrize(("credential", "series"), [(METRICS_KEY, ["ws_a"]), (METRICS_TOKEN, ["ws_a", "ws_b", ""])])
async def test_metrics_key_sees_its_workspace_and_the_operators_token_sees_all(
    credential: str, series: list[str]
) -> None:
    async with admin() as client:
        answer = await client.get("/metrics", headers={"X-Real-IP": "198.51.100.7", "x-api-key": credential})
        families = text_string_to_metric_families(await answer.text())
        assert [one.labels.get("workspace", "") for family in families for one in family.samples] == series


@pytest.mark.parametrize(
    ("peer", "is_http_1_1", "fields", "direct"),
    [
        ("127.0.0.1", True, [("host", "127.0.0.1:8082")], True),
        ("::1", True, [("host", "[::1]:8082")], True),
        ("127.0.0.1", True, [("host", "localhost")], True),
        ("10.0.0.5", True, [("host", "127.0.0.1:8082")], False),
        ("127.0.0.1", True, [("host", "gateway.example.com")], False),
        ("127.0.0.1", True, [("host", "127.0.0.1.example.com")], False),
        ("127.0.0.1", False, [("host", "127.0.0.1:8082")], False),
        ("127.0.0.1", True, [("host", "127.0.0.1"), ("x-forwarded-proto", "https")], False),
        ("127.0.0.1", True, [("host", "127.0.0.1"), ("forwarded", "for=198.51.100.7")], False),
        ("127.0.0.1", True, [("host", "127.0.0.1"), ("via", "1.1 front")], False),
        ("127.0.0.1", True, [("host", "127.0.0.1"), ("x-real-ip", "198.51.100.7")], False),
    ],
)
def test_request_through_a_local_forwarder_is_not_direct(
    peer: str, is_http_1_1: bool, fields: list[tuple[str, str]], direct: bool
) -> None:
    assert is_direct_from_loopback(peer, is_http_1_1, fields) is direct


async def test_other_paths_are_404() -> None:
    async with admin() as client:
        assert (await client.get("/")).status == 404
        assert (await client.post("/metrics")).status == 405


async def test_head_answers_gets_status_and_length_without_a_body() -> None:
    async with admin(redis=Finding(fault="Redis does not answer")) as client:
        for path in ("/healthz", "/readyz", "/metrics"):
            get = await client.get(path)
            head = await client.head(path)
            assert (head.status, await head.read()) == (get.status, b"")
            assert head.headers["Content-Length"] == get.headers["Content-Length"]
