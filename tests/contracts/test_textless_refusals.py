"""The product's own clients of control always say why, also where a proxy between answers without text.

Their errors stand in brackets in log lines.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from launcher.edges.control_client import ControlClient as LauncherClient
from launcher.edges.control_client import ControlRefusedError as LauncherRefusedError
from policy.training.reports import OutputBatch
from proxy.edges.journal.supervisor.delivery import EventsRejectedError
from proxy.edges.journal.supervisor.ingest_client import HttpIngestClient
from proxy.edges.replicas.supervisor.control_reports import ControlReports, ReportRejectedError
from trainer.control import ControlRefusedError
from trainer.edges.control_client import ControlClient

TOKEN = "token of the tests"


@pytest.fixture(params=["", '{"error": ""}'])
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A server that refuses everything with 400 and this body."""

    async def refuse(_request: web.Request) -> web.Response:
        return web.Response(status=400, text=request.param, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    async with TestServer(app) as server:
        yield f"http://{server.host}:{server.port}"


async def refused_events(url: str) -> None:
    client = HttpIngestClient(url, TOKEN)
    try:
        await client.post(b"{}")
    finally:
        await client.close()


async def refused_report(url: str) -> None:
    client = ControlReports(url, TOKEN)
    try:
        await client.post("loads", {})
    finally:
        await client.close()


async def refused_output(url: str) -> None:
    client = ControlClient(url, TOKEN)
    try:
        await client.output("tj_1", OutputBatch(1, 0, 0, 1, (), ()))
    finally:
        await client.close()


async def refused_launcher(url: str) -> None:
    client = LauncherClient(url, TOKEN, "/v1/models/m/deployments/d")
    try:
        await client.append([])
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (refused_events, EventsRejectedError),
        (refused_report, ReportRejectedError),
        (refused_output, ControlRefusedError),
        (refused_launcher, LauncherRefusedError),
    ],
)
async def test_refusal_without_a_text_has_a_cause(
    url: str, call: Callable[[str], Awaitable[None]], kind: type[Exception]
) -> None:
    with pytest.raises(kind) as refusal:
        await call(url)
    assert str(refusal.value).strip()
