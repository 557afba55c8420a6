"""The console's overview: traffic by slug as it happens, and what to do while there is none."""

import openai
import pytest
from playwright.async_api import Page, expect

from tests.journeys.conftest import Stage
from tests.journeys.console.browsing import assert_accessible, assert_fits, signed_in
from tests.journeys.product import models


async def test_overview_shows_calls_as_they_happen_and_one_slug_alone(page: Page, stage: Stage) -> None:
    await stage.key_without_limits()
    limited = await stage.operator.group(f"{stage.name}-limited", models(stage.slug, ("REQUEST", "DAY", 3)))
    key = await stage.operator.key(limited)
    await signed_in(page, stage.operator.api_key, "/console/overview")

    for _ in range(3):
        await stage.ask(key)
    with pytest.raises(openai.RateLimitError):
        await stage.ask(key)
    row = page.get_by_role("row", name=stage.slug)
    await expect(row.get_by_role("cell").first).to_have_text("4")
    await expect(row.locator("[data-head='Error rate']")).to_have_text("0 %")
    await page.get_by_role("button", name="Refusals").click()
    await expect(page.get_by_role("columnheader", name="Refusals")).to_have_attribute("aria-sort", "descending")
    await assert_accessible(page)

    await row.get_by_role("link", name=stage.slug).click()
    calls = page.locator(".figure").filter(has=page.get_by_text("Calls", exact=True))
    await expect(calls).to_contain_text("4")
    traffic = await stage.operator.call("GET", "/v1/gateway/traffic", period="hour", slug=stage.slug)
    assert [(item["calls"], item["refusals"]) for item in traffic["items"]] == [(4, 1)]
    await assert_fits(page)


async def test_overview_of_a_slug_without_calls_says_so(page: Page, stage: Stage) -> None:
    await signed_in(page, stage.operator.api_key, f"/console/overview?period=month&slug={stage.slug}")
    await expect(page.get_by_text("No call of")).to_contain_text(stage.slug)
