"""An aiohttp application behind the front that control and the admin port share, on a port of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from runtime.http.server import FrontLimits, FrontRunner


@asynccontextmanager
async def listening_at(app: web.Application, limits: FrontLimits) -> AsyncIterator[int]:
    """Serve it at this port."""
    runner = FrontRunner(app, limits, shutdown_timeout=0.2)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
