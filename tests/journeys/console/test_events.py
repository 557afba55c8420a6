"""The page of billing events: its filters, what it follows, and what it exports."""

import csv
from pathlib import Path

from playwright.async_api import Page, expect

from tests.journeys.console.browsing import assert_accessible, assert_fits, signed_in
from tests.journeys.console.scene import SLUGS, Scene


async def test_a_filter_shows_the_events_of_one_group(page: Page, scene: Scene) -> None:
    await signed_in(page, scene.api_key, "/console/events")
    await page.get_by_label("Group (external id)").fill("research")
    await page.get_by_role("button", name="Show", exact=True).click()
    await page.wait_for_url("**/console/events?*external_entity_ids=research*")
    rows = page.get_by_role("region", name="Events").locator("tbody tr")
    events = await scene.stage.operator.events("research", scene.stage.began, 100)
    await expect(rows).to_have_count(len(events))
    await rows.first.get_by_role("button").click()
    await expect(page.get_by_role("dialog")).to_contain_text(events[0]["idempotencyKey"])
    await assert_accessible(page)
    await page.get_by_role("button", name="Close").click()
    await assert_fits(page)


async def test_an_export_holds_every_event_of_the_filter(page: Page, scene: Scene) -> None:
    await signed_in(page, scene.api_key, f"/console/events?external_entity_id=partner&model_slug={SLUGS[2]}")
    await page.get_by_role("button", name="Export …").click()
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Export", exact=True).click()
    text = Path(await (await download.value).path()).read_text()
    events = await scene.stage.operator.events("partner", scene.stage.began, 100)
    assert [row["idempotency_key"] for row in csv.DictReader(text.splitlines())] == [
        event["idempotencyKey"] for event in events
    ]


async def test_a_followed_event_appears_once(page: Page, scene: Scene) -> None:
    await signed_in(page, scene.api_key, "/console/events?follow=1&external_entity_ids=support")
    await expect(page.get_by_text("final until")).to_be_visible()
    before = {
        event["idempotencyKey"] for event in await scene.stage.operator.events("support", scene.stage.began, 1000)
    }
    assert await scene.call("support") == 200

    async def new() -> list[str]:
        events = await scene.stage.operator.events("support", scene.stage.began, 1000)
        return [event["idempotencyKey"] for event in events if event["idempotencyKey"] not in before]

    (key,) = await scene.stage.until(new, "the call has an event")
    await expect(page.get_by_role("button", name=f"Show event {key}")).to_have_count(1)
