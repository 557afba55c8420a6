"""The admin port says how things stand, and only that."""

from collections.abc import Awaitable, Callable

from aiohttp.test_utils import TestClient, TestServer

from proxy.edges.admin import admin_app


def says(fault: str) -> Callable[[], Awaitable[str]]:
    async def check() -> str:
        return fault

    return check


async def metrics() -> bytes:
    return b"tollgate_inflight_requests 0.0\n"


async def test_ready_only_when_every_check_holds() -> None:
    for faults, status in ({"policy": "", "redis": ""}, 200), ({"policy": "", "redis": "Redis does not answer"}, 503):
        app = admin_app({name: says(fault) for name, fault in faults.items()}, metrics)
        async with TestClient(TestServer(app)) as client:
            answer = await client.get("/readyz")
            assert answer.status == status
            body = await answer.json()
            assert body["ready"] is (status == 200)
            assert body["checks"] == {name: fault or "ok" for name, fault in faults.items()}
            assert (await client.get("/healthz")).status == 200


async def test_metrics_are_prometheus_text() -> None:
    async with TestClient(TestServer(admin_app({}, metrics))) as client:
        answer = await client.get("/metrics")
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert await answer.read() == b"tollgate_inflight_requests 0.0\n"


async def test_nothing_else_is_served() -> None:
    async with TestClient(TestServer(admin_app({}, metrics))) as client:
        assert (await client.get("/")).status == 404
        assert (await client.post("/metrics")).status == 405
