"""Every page's cost to load is bounded, and a phone shows all of the page."""

import asyncio

from playwright.async_api import Page, Request, Route

from control.api.console.pages import PAGES
from tests.journeys.console.browsing import assert_fits, drawn, signed_in
from tests.journeys.console.scene import Scene

_MAX_BYTES = 300_000
_PAGES = [name for name in PAGES if name != "usage"]


async def test_every_page_is_light_and_fits_a_phone(page: Page, scene: Scene) -> None:
    await signed_in(page, scene.api_key)
    heavy: list[str] = []
    for name in _PAGES:
        heavy += await _weighed(page, f"/console/{name}")
        await assert_fits(page)
    assert heavy == []


async def test_a_customers_page_is_light_and_fits_a_phone(page: Page, scene: Scene) -> None:
    await signed_in(page, scene.keys["support"])
    assert await _weighed(page, "/console/usage") == []
    await assert_fits(page)


async def _weighed(page: Page, path: str) -> list[str]:
    """Load a page with nothing cached. Say if it takes too many bytes."""
    finished: list[Request] = []

    def count(request: Request) -> None:
        finished.append(request)

    async def go_on(route: Route) -> None:
        await route.continue_()

    await page.route("**/*", go_on)  # a page whose requests are routed takes nothing from the cache
    page.on("requestfinished", count)
    await drawn(page, path)
    page.remove_listener("requestfinished", count)
    sizes = await asyncio.gather(*(one.sizes() for one in finished))
    total = sum(one["responseBodySize"] + one["responseHeadersSize"] for one in sizes)
    assert total > 20_000, "not all was counted"
    return [f"{path} takes {total} bytes"] if total >= _MAX_BYTES else []
