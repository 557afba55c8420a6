"""The console's charts: read by pointer and keyboard, zoomed in and back; outliers are cut, gaps stay gaps."""

import re
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from tests.journeys.console.browsing import NARROW, assert_accessible, assert_fits, drawn, logged_in, signed_in
from tests.journeys.console.scene import Scene

_DRAW = """async ({title, times, series, options}) => {
    const { timeChart } = await import("/console/assets/chart.mjs");
    const figure = timeChart(title, times.map((at) => new Date(at)), series, options);
    if (!figure.isConnected) document.querySelector("main").append(figure);
}"""
"""Draws figures of the test with the console's own chart, in the page."""
_START_MS = 1_795_996_800_000  # 30 November 2026, 00:00 UTC
_MINUTE_MS = 60_000
_DAY_MS = 86_400_000


async def draw(
    page: Page, title: str, values: list[Any], step_ms: int = _MINUTE_MS, first: int = 0, **options: Any
) -> Locator:
    """A chart of one series, named `calls`; `first`: which step its first value is."""
    times = [_START_MS + (first + at) * step_ms for at in range(len(values))]
    series = [{"name": "calls", "tone": "a", "values": values}]
    await page.evaluate(_DRAW, {"title": title, "times": times, "series": series, "options": options})
    return page.get_by_role("figure").filter(has_text=title)


@pytest.fixture
def plot(page: Page) -> Locator:
    """The area of the Overview's chart of calls."""
    return page.get_by_role("slider", name="Calls: values")


async def test_a_chart_is_read_by_the_arrow_keys_and_at_the_pointer(page: Page, scene: Scene, plot: Locator) -> None:
    await signed_in(page, scene.api_key)
    figure = page.get_by_role("figure").filter(has=plot)
    tip = figure.locator(".tip")
    await expect(figure.locator(".tick.zone")).to_have_text("UTC")

    await page.get_by_role("link", name="Earlier").focus()
    await page.keyboard.press("Tab")
    await expect(plot).to_be_focused()
    await expect(tip).to_contain_text("UTC")
    newest = int(await plot.get_attribute("aria-valuenow") or "")
    await page.keyboard.press("ArrowLeft")
    await page.keyboard.press("ArrowLeft")
    await expect(plot).to_have_attribute("aria-valuenow", str(newest - 2))
    text = await plot.get_attribute("aria-valuetext") or ""
    assert " UTC: answered " in text
    assert ", failed " in text
    await expect(tip).to_contain_text(text.partition(": answered")[0])
    await assert_accessible(page)
    await page.keyboard.press("Home")
    await expect(plot).to_have_attribute("aria-valuenow", "0")
    await page.keyboard.press("Escape")
    await expect(tip).to_be_hidden()

    box = await plot.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    await expect(tip).to_be_visible()
    await page.mouse.move(box["x"], box["y"] - 60)
    await expect(tip).to_be_hidden()


async def test_a_chart_is_zoomed_by_a_drag_by_keys_and_by_buttons_and_back(page: Page, scene: Scene) -> None:
    await signed_in(page, scene.api_key)
    figure = await draw(page, "Sample", list(range(60)), kind="bars")
    plot = figure.get_by_role("slider")
    everything = figure.get_by_role("button", name="Show all")
    await expect(figure.locator("rect")).to_have_count(59)  # the first value is 0
    await expect(everything).to_be_hidden()

    await plot.scroll_into_view_if_needed()
    box = await plot.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] * 20.5 / 60, box["y"] + 20)
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] * 25, box["y"] + 20)  # beyond the chart's end
    await page.mouse.move(box["x"] + box["width"] * 29.5 / 60, box["y"] + 20)
    await page.mouse.up()
    await expect(figure.locator("rect")).to_have_count(10)
    await expect(figure.get_by_role("status")).to_have_text("30 Nov, 00:20 UTC to 30 Nov, 00:29 UTC")
    await everything.click()
    await expect(figure.locator("rect")).to_have_count(59)
    await expect(figure.get_by_role("status")).to_be_empty()

    await plot.focus()
    await page.keyboard.press("Home")
    await page.keyboard.press("+")
    await expect(plot).to_have_attribute("aria-valuemax", "29")
    await page.keyboard.press("End")
    await page.keyboard.press("ArrowRight")  # what is shown moves along
    await expect(plot).to_have_attribute("aria-valuenow", "30")
    await expect(plot).to_have_attribute("aria-valuemin", "1")
    await page.keyboard.press("-")
    await expect(figure.locator("rect")).to_have_count(59)

    await figure.get_by_role("button", name="Zoom in").click()
    await expect(figure.locator("rect")).to_have_count(30)
    await assert_accessible(page)
    await assert_fits(page, NARROW)


async def until_updated(page: Page) -> None:
    """Let the page's timers, of whose clock the test is the master, be due at once: it shows newer figures."""
    updated = page.get_by_text("Updated")
    before = await updated.inner_text()
    await page.clock.fast_forward(60_000)
    await expect(updated).not_to_have_text(before)


async def test_a_zoom_and_the_value_that_is_read_outlive_new_figures(page: Page, scene: Scene, plot: Locator) -> None:
    await page.clock.install()
    await logged_in(page, scene.api_key)
    await drawn(page, "/console/overview")
    await plot.focus()
    await page.keyboard.press("ArrowLeft")
    await page.keyboard.press("+")
    await expect(page.get_by_role("button", name="Show all: Calls")).to_be_visible()
    read = (await plot.get_attribute("aria-valuetext") or "").partition(": answered")[0]
    await until_updated(page)
    await expect(page.get_by_role("button", name="Show all: Calls")).to_be_visible()
    await expect(plot).to_be_focused()
    await expect(page.get_by_role("figure").filter(has=plot).locator(".tip")).to_contain_text(read)


async def test_the_value_that_is_read_stays_the_same_when_time_moves_on(page: Page, scene: Scene) -> None:
    await signed_in(page, scene.api_key, "/console/keys")
    figure = await draw(page, "Sample", list(range(60)))
    plot = figure.get_by_role("slider")
    await plot.focus()
    await page.keyboard.press("ArrowLeft")
    await draw(page, "Sample", list(range(1, 61)), first=1)
    await expect(plot).to_be_focused()
    await expect(plot).to_have_attribute("aria-valuetext", "30 Nov, 00:58 UTC: calls 58")
    await expect(figure.locator(".tip")).to_contain_text("00:58 UTC")


async def test_an_outlier_is_cut_in_words_and_shown_in_full_on_demand(page: Page, scene: Scene) -> None:
    await signed_in(page, scene.api_key, "/console/keys")
    values = [100, 90, 80, 110, 95] * 6
    figure = await draw(page, "Month", [*values[:17], 90_000, *values[18:]], _DAY_MS, kind="bars")
    rows = figure.locator(".tick.row")
    await expect(figure).to_contain_text("Axis cut at 150. 1 value is higher: 90,000 (17 Dec)")
    await expect(rows.last).to_have_text("150")
    await expect(figure.locator(".over")).to_have_count(1)
    await assert_accessible(page)
    await figure.get_by_role("button", name="Show in full").click()
    await expect(rows.last).to_have_text("100K")
    await expect(figure.locator(".over")).to_have_count(0)
    await figure.get_by_role("button", name="Cut the axis").click()
    await expect(rows.last).to_have_text("150")


async def test_gaps_are_no_zeros(page: Page, scene: Scene) -> None:
    await signed_in(page, scene.api_key, "/console/keys")
    line = await draw(page, "Line", [5, 6, None, None, 7, 8, None, 0])
    path = await line.locator("path.line").get_attribute("d") or ""
    assert (path.count("M"), path.count("L")) == (2, 2)
    await expect(line.locator("path.point")).to_have_count(1)  # the last value stands alone
    await line.get_by_role("slider").focus()
    await page.keyboard.press("End")
    await expect(line.get_by_role("slider")).to_have_attribute("aria-valuetext", "30 Nov, 00:07 UTC: calls 0")
    await page.keyboard.press("ArrowLeft")
    await expect(line.get_by_role("slider")).to_have_attribute("aria-valuetext", "30 Nov, 00:06 UTC: calls no data")

    bars = await draw(page, "Bars", [5, 0, None, 6], kind="bars")
    await expect(bars.locator("rect.gap")).to_have_count(1)
    await expect(bars).to_contain_text("Grey: no data.")
    await bars.get_by_text("Table").click()
    await expect(bars.get_by_role("region").locator("tbody td")).to_have_text(["5", "0", "no data", "6"])
    await expect(bars.get_by_role("columnheader", name="Time (UTC)")).to_be_visible()
    await expect(await draw(page, "Nothing", [None, None])).to_contain_text("No data in this time")


async def test_the_time_of_one_slug_is_drawn_at_a_time(page: Page, scene: Scene) -> None:
    await page.clock.install()
    await logged_in(page, scene.api_key)
    await drawn(page, "/console/overview")
    figure = page.get_by_role("figure").filter(has_text="Time to first byte (p50)")
    await expect(figure.locator("path.line")).to_have_count(1)
    choice = figure.get_by_role("combobox", name="Slug of Time to first byte")
    await choice.select_option("acme/summaries")
    plot = figure.get_by_role("slider")
    await expect(plot).to_have_attribute("aria-valuetext", re.compile(" UTC: acme/summaries "))
    await until_updated(page)
    await expect(choice).to_have_value("acme/summaries")
