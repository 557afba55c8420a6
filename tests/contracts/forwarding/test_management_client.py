"""The commands' client of the management API, against a server on a socket."""

import pytest
from aiohttp import web

from commands.edges.management_client import ManagementClient
from commands.errors import AwayError
from tests.ports import HOST, own_port


async def test_rate_limit_that_does_not_end_is_an_outage() -> None:
    """A forwarder tries again after an outage; a refusal would end it."""
    calls = 0

    async def refuse(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        return web.json_response({"error": "too many requests", "retry_after": 0}, status=429)

    app = web.Application()
    app.router.add_get("/v1/gateway/events", refuse)
    runner = web.AppRunner(app)
    port = own_port()
    await runner.setup()
    await web.TCPSite(runner, HOST, port).start()
    client = ManagementClient(f"http://{HOST}:{port}", "tg_key")
    try:
        with pytest.raises(AwayError, match="429: too many"):
            await client.call("GET", "/v1/gateway/events")
    finally:
        await client.close()
        await runner.cleanup()
    assert calls == 4
