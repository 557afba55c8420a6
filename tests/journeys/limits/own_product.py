"""A product of one test's own, with settings of its own, such as a clock that the test steps."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests.journeys.conftest import Stage, Workspace, stage_of
from tests.journeys.product import Product
from tests.upstream import ScriptedUpstream


@asynccontextmanager
async def own_product(
    directory: Path, settings: dict[str, str], upstream: ScriptedUpstream | None = None
) -> AsyncIterator[Stage]:
    """A stage on it. `upstream`: the stage's, where the test asks it."""
    product = Product(directory / "data", settings=settings)
    async with aiohttp.ClientSession() as session:
        try:
            await asyncio.to_thread(product.start)
            yield stage_of(Workspace(product), session, upstream, "own")  # type: ignore[arg-type]  # some have another
        finally:
            await asyncio.to_thread(product.kill)
