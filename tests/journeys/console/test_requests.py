"""The page of requests: a call is found by the id that a customer sends, and says which limit has refused it."""

from typing import Any

from playwright.async_api import Page, expect

from tests.journeys.console.browsing import assert_accessible, assert_fits, signed_in
from tests.journeys.console.scene import SLUGS, Scene
from tests.journeys.product import models

PATH = "/v1/gateway/requests"


async def test_a_refusal_an_hour_ago_is_found_by_its_id(page: Page, scene: Scene) -> None:
    operator = scene.stage.operator
    group_id = await operator.group("refused", models(SLUGS[0], ("REQUEST", "DAY", 0)))
    headers = {"authorization": f"Bearer {await operator.key(group_id)}", "x-request-id": "customers-id-7"}
    body = b'{"model":"%b","messages":[{"role":"user","content":"Hello"}]}' % SLUGS[0].encode()
    assert (await scene.stage.post(headers, body))[0] == 429

    async def listed() -> Any:
        return (await operator.call("GET", PATH, request_id="customers-id-7"))["items"]

    await scene.stage.until(listed, "the refusal is listed")
    await signed_in(page, scene.api_key, "/console/requests")
    await page.get_by_label("Request id").fill("customers-id-7")
    await page.get_by_role("button", name="Show", exact=True).click()
    await page.wait_for_url("**/console/requests?*request_id=customers-id-7*")
    row = page.get_by_role("region", name="Requests").locator("tbody tr")
    await expect(row).to_have_count(1)
    await expect(row).to_contain_text("429")
    await expect(row).to_contain_text("RATE_LIMITED: 0 requests a day")
    await assert_accessible(page)
    await assert_fits(page)
    await page.get_by_role("button", name="Show request customers-id-7").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_label("Request id")).to_have_text("customers-id-7")
    await expect(dialog.get_by_role("link", name=group_id)).to_be_visible()
    await assert_accessible(page)


async def test_a_status_and_a_group_select_requests(page: Page, scene: Scene) -> None:
    assert await scene.call("support") == 200

    async def listed() -> Any:
        query = {"external_entity_id": "support", "status": "2xx"}
        return (await scene.stage.operator.call("GET", PATH, **query))["items"]

    await scene.stage.until(listed, "the call is listed")
    await signed_in(page, scene.api_key, "/console/requests?status=2xx")
    await page.get_by_role("link", name="support").first.click()
    await page.wait_for_url("**/console/requests?*external_entity_id=support*")
    await expect(page.get_by_role("region", name="Requests").locator("tbody tr").first).to_contain_text("200")


async def test_nothing_is_found_for_an_unknown_id(page: Page, scene: Scene) -> None:
    await signed_in(page, scene.api_key, "/console/requests?request_id=nobodys")
    await expect(page.get_by_text("No request matches")).to_be_visible()
