"""One tenant holds all that it can of the admin port; probes, the operator's scraper and other tenants are served."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from proxy.edges.telemetry.supervisor.admin_port import admin_app
from proxy.supervisor.app import ADMIN_LIMITS
from proxy.supervisor.readiness import Readiness
from runtime.metrics_text import ALL_WORKSPACES
from tests.fakes.aiohttp_front import listening_at
from tests.fakes.front import Caller, connect
from tests.waiting import eventually

CONNECTIONS = 16
SHARE = 9
"""The share of one workspace: three quarters of the three quarters that workspaces have."""
WORKSPACES = {"hostile": "ws_a", "other": "ws_b", "operator": ALL_WORKSPACES}
"""The workspace that each credential may read."""
HELD = {
    "silence": b"",
    "half a head": b"GET /metrics HTTP/1.1\r\nHost: x\r\n",
    "an unread answer": b"GET /metrics HTTP/1.1\r\nHost: x\r\nx-api-key: hostile\r\n\r\n",
    "half a body": b"POST /readyz HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx",
}


class AdminPort:
    """The admin port with few connections and long answers."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.port = 0

    async def caller(self, data: bytes, *, reads: bool = True) -> Caller:
        caller = await connect(self.port, data, reads=reads)
        self._stack.callback(caller.reset)
        return caller

    async def status(self, path: str, credential: str) -> int:
        head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nx-api-key: {credential}\r\n\r\n"
        caller = await self.caller(head.encode())
        return int((await caller.read_to_end()).split(b" ", 2)[1])


@asynccontextmanager
async def admin_port() -> AsyncIterator[AdminPort]:
    async def metrics(_accept: str, _workspace: str) -> tuple[bytes, str]:
        return bytes(8 << 20), "text/plain"

    async def workspace_shown(credential: str) -> str | None:
        return WORKSPACES.get(credential)

    async with AsyncExitStack() as stack:
        admin = AdminPort(stack)
        limits = replace(ADMIN_LIMITS, max_connections=CONNECTIONS, lingering_s=0.2)
        app = admin_app(Readiness({}).report, metrics, workspace_shown)
        admin.port = await stack.enter_async_context(listening_at(app, limits))
        yield admin


@pytest.mark.parametrize("held_request", HELD.values(), ids=HELD)
async def test_others_are_served_while_one_tenant_holds_every_connection_of_the_admin_port(held_request: bytes) -> None:
    async with admin_port() as admin:
        for _ in range(3):
            for _ in range(CONNECTIONS * 2):
                await admin.caller(held_request, reads=False)
            for path, credential in (("/readyz", ""), ("/metrics", "other"), ("/metrics", "operator")):
                assert await admin.status(path, credential) == 200


async def test_metrics_key_with_its_share_of_connections_is_429() -> None:
    async with admin_port() as admin:
        for _ in range(SHARE + 3):
            await admin.caller(HELD["an unread answer"], reads=False)

        async def is_refused() -> bool:
            return await admin.status("/metrics", "hostile") == 429

        await eventually(is_refused)
        assert await admin.status("/metrics", "other") == 200
