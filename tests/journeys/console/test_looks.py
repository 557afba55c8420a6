"""Looks of the console: tables that scroll, large figures, navigation. Contrast: `test_weight.py`."""

import sqlite3
from contextlib import closing

from playwright.async_api import Locator, Page, expect

from control.api.console.pages import PAGES
from tests.journeys.conftest import Stage
from tests.journeys.console.browsing import NARROW, WIDE, assert_fits, signed_in
from tests.journeys.console.scene import Scene

CUSTOMERS_PAGE = "usage"
MEDIUM = 1024


async def test_a_table_that_is_too_wide_shows_a_shade_and_scrolls_by_keyboard(page: Page, scene: Scene) -> None:
    await page.set_viewport_size({"width": NARROW, "height": 900})
    await signed_in(page, scene.api_key, "/console/requests")
    table = page.get_by_role("region", name="Requests")
    await expect(table.get_by_role("rowheader").first).to_be_visible()
    assert await table.evaluate("(one) => one.scrollWidth > one.clientWidth")
    # Two shades that stay, below two covers that move with the table: a shade is seen where there is more.
    attachments = await table.evaluate("(one) => getComputedStyle(one).backgroundAttachment")
    assert attachments.split(", ")[:4] == ["local", "local", "scroll", "scroll"]
    await table.focus()
    assert await table.evaluate("(one) => getComputedStyle(one).outlineStyle") == "solid"
    await page.keyboard.press("ArrowRight")
    await page.wait_for_function("(one) => one.scrollLeft > 0", arg=await table.element_handle())
    first, second = [await head.inner_text() for head in (await table.get_by_role("columnheader").all())[:2]]
    assert (first, second) == ("Time", "Status"), "what matters first is seen without scrolling"


def enlarge(stage: Stage) -> None:
    """Make the traffic of the stage's slug that of a large customer."""
    with closing(sqlite3.connect(stage.product.data / "control.db", timeout=30)) as database, database:
        changed = database.execute(
            "UPDATE traffic SET calls = 1234567890, errors = 123456789, uncached_input_tokens = 123456789012345,"
            " cached_input_tokens = 1234567890, output_tokens = 1234567890 WHERE slug = ?",
            [stage.slug],
        )
        assert changed.rowcount > 0


async def assert_on_one_line(tile: Locator) -> None:
    """Check that a tile's value has one line, and that nothing sticks out of the tile."""
    sizes = "(one) => [one.scrollWidth - one.clientWidth, one.querySelector('.value').getClientRects().length]"
    assert await tile.evaluate(sizes) == [0, 1], await tile.inner_text()
    value = tile.locator(".value")
    lines = "(one) => one.getBoundingClientRect().height / parseFloat(getComputedStyle(one).lineHeight)"
    assert round(await value.evaluate(lines)) == 1, await tile.inner_text()


async def test_tiles_keep_large_figures_on_one_line_at_all_widths(page: Page, stage: Stage) -> None:
    await stage.ask(await stage.key_without_limits())

    async def counted() -> bool:
        items = (await stage.operator.call("GET", "/v1/gateway/traffic", slug=stage.slug))["items"]
        return bool(items and items[0]["calls"])

    await stage.until(counted, "the call is in the traffic")
    enlarge(stage)
    await signed_in(page, stage.operator.api_key, f"/console/overview?slug={stage.slug}")
    tiles = page.locator(".figure")
    await expect(tiles.first.locator(".value")).to_have_text("1.2B")
    assert await tiles.count() == 6
    row = page.get_by_role("row", name=stage.slug)
    for width in (NARROW, MEDIUM, WIDE):
        await assert_fits(page, width)
        for tile in await tiles.all():
            await assert_on_one_line(tile)
        await expect(row.locator("[data-head='Error rate']")).to_have_text("10 %")
        await expect(row.locator("[data-head='Input']")).to_have_css("text-align", "right")


async def test_navigation_is_in_sections_at_all_widths(page: Page, scene: Scene) -> None:
    await signed_in(page, scene.api_key, "/console/keys")
    pages = page.get_by_role("navigation", name="Pages")
    for width in (WIDE, MEDIUM, NARROW):
        await page.set_viewport_size({"width": width, "height": 900})
        if width == NARROW:
            await page.get_by_role("button", name="Pages").click()
        for section, link in (("Monitor", "Requests"), ("Access", "Keys"), ("Billing", "Events"), ("Models", "Async")):
            await expect(pages.get_by_role("list", name=section).get_by_role("link", name=link)).to_be_visible()
        await expect(pages.get_by_role("link", name="Keys")).to_have_attribute("aria-current", "page")
        header = await page.locator("header").bounding_box()
        assert header is not None
        assert header["height"] < (60 if width > NARROW else 110), (
            "the header has one line, and on a phone one for the search"
        )
    assert await pages.get_by_role("link").count() == len(set(PAGES) - {CUSTOMERS_PAGE})
