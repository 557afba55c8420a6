"""A product with all its parts, one browser for all journeys of the console, and a watched page for each.

These tests, and the fixtures below, run in one event loop: that of the browser.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page

from tests.journeys.conftest import Workspace
from tests.journeys.console.browsing import CHROMIUM, MISSING, Faults, running_browser, watched_context
from tests.journeys.console.scene import Place, Scene, furnish, started_place
from tests.upstream import ScriptedUpstream

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="package")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The running product, with its own Redis, trainer and async worker."""
    with started_place(tmp_path_factory.mktemp("console")) as running_place:
        yield running_place
        assert running_place.product.stop() == 0, running_place.product.log_tail()


@pytest.fixture(scope="package")
def workspace(place: Place) -> Workspace:
    """The same, for the fixtures of all journeys: a `stage` of these tests is at this product."""
    return place.workspace


@pytest_asyncio.fixture(loop_scope="session")
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest_asyncio.fixture(loop_scope="session")
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream() as upstream:
        yield upstream


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def scene(place: Place) -> AsyncIterator[Scene]:
    """A busy workspace. Journeys that change it add to it, or take a workspace of their own."""
    async with furnish(place) as busy_scene:
        yield busy_scene


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    if not Path(CHROMIUM).exists():
        pytest.skip(MISSING)
    async with running_browser() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="session")
async def watched(browser: Browser, place: Place) -> AsyncIterator[tuple[BrowserContext, Faults]]:
    async with watched_context(browser, place.product.control) as (context, faults):
        yield context, faults
    assert faults.texts == []


@pytest.fixture
def context(watched: tuple[BrowserContext, Faults]) -> BrowserContext:
    """A browser's profile of its own, at the console."""
    return watched[0]


@pytest.fixture
def faults(watched: tuple[BrowserContext, Faults]) -> Faults:
    """Faults of the context's pages; at the end there must be none that was not expected."""
    return watched[1]


@pytest_asyncio.fixture(loop_scope="session")
async def page(context: BrowserContext) -> Page:
    return await context.new_page()
