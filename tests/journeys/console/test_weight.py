"""Every page's cost to load is bounded. It is accessible in both schemes, and a phone shows all of it."""

import asyncio

from playwright.async_api import Browser, Page, Request, Route

from control.api.console.pages import PAGES
from tests.journeys.console.browsing import (
    NARROW,
    WIDE,
    assert_accessible,
    assert_accessible_in_the_dark,
    assert_fits,
    drawn,
    logged_in,
    watched_context,
)
from tests.journeys.console.scene import Scene

CUSTOMERS_PAGE = "usage"
_MAX_BYTES = 300_000


async def test_every_page_is_light_accessible_and_fits_a_phone(browser: Browser, scene: Scene) -> None:
    """Each page is loaded once and looked at in both schemes and widths: no script of it knows of them."""
    heavy: list[str] = []
    for key, names in ((scene.api_key, set(PAGES) - {CUSTOMERS_PAGE}), (scene.keys["support"], {CUSTOMERS_PAGE})):
        async with watched_context(browser, scene.stage.product.control) as (context, faults):
            page = await context.new_page()
            await page.route("**/*", _go_on)  # a page whose requests are routed takes nothing from the cache
            if key == scene.api_key:
                await drawn(page, "/console/overview")  # the login
                await _assert_looks(page)
            await logged_in(page, key)
            for name in sorted(names):
                heavy += await _weighed(page, f"/console/{name}")
                await _assert_looks(page)
            assert faults.texts == []
    assert heavy == []


async def _go_on(route: Route) -> None:
    await route.continue_()


async def _assert_looks(page: Page) -> None:
    for width in (WIDE, NARROW):
        await assert_fits(page, width)
        await assert_accessible(page)
        await assert_accessible_in_the_dark(page)


async def _weighed(page: Page, path: str) -> list[str]:
    """Load a page with nothing cached. Say if it takes too many bytes."""
    finished: list[Request] = []

    def count(request: Request) -> None:
        finished.append(request)

    page.on("requestfinished", count)
    await drawn(page, path)
    page.remove_listener("requestfinished", count)
    sizes = await asyncio.gather(*(one.sizes() for one in finished))
    total = sum(one["responseBodySize"] + one["responseHeadersSize"] for one in sizes)
    assert total > 20_000, "not all was counted"
    return [f"{path} takes {total} bytes"] if total >= _MAX_BYTES else []
