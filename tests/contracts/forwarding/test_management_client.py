"""The commands' client of the management API, against a server on a socket."""

import socket
from collections.abc import Iterator

import pytest
from aiohttp import web

from commands.edges.management_client import ManagementClient
from commands.errors import AwayError
from tests.ports import HOST, own_port

HUNG_S = 0.2
WRITTEN = "The change may have taken effect: look before you repeat it"


@pytest.fixture
def hung_url() -> Iterator[str]:
    """A control that is stopped: the kernel accepts connections, and nobody answers."""
    with socket.create_server((HOST, 0)) as server:
        yield f"http://{HOST}:{server.getsockname()[1]}"


@pytest.mark.parametrize(("method", "is_change"), [("GET", False), ("PATCH", True), ("POST", True), ("DELETE", True)])
async def test_a_hung_control_ends_in_a_sentence(hung_url: str, method: str, is_change: bool) -> None:
    client = ManagementClient(hung_url, "tg_key", HUNG_S)
    try:
        with pytest.raises(AwayError) as caught:
            await client.call(method, "/v1/gateway/groups", {"name": "x"}, external_entity_id="customer")
    finally:
        await client.close()
    message = str(caught.value)
    assert message.startswith(
        f"{hung_url} gave no answer to {method} /v1/gateway/groups within 0.2 s. Check that control"
    )
    assert "TOLLGATE_URL" in message
    assert message.endswith(WRITTEN) is is_change
    assert "tg_key" not in message


async def test_a_control_that_is_not_there_has_changed_nothing() -> None:
    client = ManagementClient(f"http://{HOST}:{own_port()}", "tg_key")
    try:
        with pytest.raises(AwayError) as caught:
            await client.call("POST", "/v1/gateway/groups", {})
    finally:
        await client.close()
    assert "does not answer as the management API" in str(caught.value)
    assert WRITTEN not in str(caught.value)


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
