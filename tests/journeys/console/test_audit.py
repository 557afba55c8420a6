"""The page of the audit trail: what a change changed, and who made it."""

from datetime import datetime, timedelta
from urllib.parse import urlencode

from playwright.async_api import Page, expect

from tests.journeys.console.browsing import assert_accessible, assert_fits, signed_in
from tests.journeys.console.scene import Scene


async def test_a_change_shows_the_members_that_differ(page: Page, scene: Scene) -> None:
    actor = scene.api_key.partition(".")[0]
    changes = (await scene.stage.operator.call("GET", "/v1/audit_events", actor=actor, limit=1000))["items"]
    resource = f"groups/{scene.groups['support']}"
    change = [one for one in changes if (one["action"], one["resource"]) == ("group.update", resource)][-1]
    end = datetime.fromisoformat(change["timestamp"]) + timedelta(milliseconds=1)
    window = urlencode({"start_time": change["timestamp"], "end_time": end.isoformat()})
    await signed_in(page, scene.api_key, f"/console/audit?{window}")
    await page.get_by_label("Actor").fill(actor)
    await page.get_by_role("button", name="Show").click()
    await page.wait_for_url(f"**/console/audit?*actor={actor}")
    entry = page.get_by_role("article").filter(has_text="group.update")
    await expect(entry.get_by_role("deletion").filter(has_text="threshold: 120")).to_contain_text("−")
    await expect(entry.get_by_role("insertion").filter(has_text="threshold: 90")).to_contain_text("+")
    await entry.get_by_text("Whole entry").click()
    await expect(entry.get_by_label("Request id")).to_have_text(change["request_id"])
    await assert_accessible(page)
    await assert_fits(page)
    link = entry.get_by_role("link", name=change["resource"])
    await expect(link).to_have_attribute("href", f"/console/groups?id={scene.groups['support']}")


async def test_nothing_is_found_for_an_actor_who_changed_nothing(page: Page, scene: Scene) -> None:
    await signed_in(page, scene.api_key, "/console/audit?actor=tg_nobody")
    await expect(page.get_by_text("No change matches")).to_be_visible()
