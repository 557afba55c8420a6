"""The page of webhooks: a secret is shown once, deliveries can be read and sent again."""

from playwright.async_api import Page, expect

from tests.journeys.console.browsing import assert_accessible, assert_fits, signed_in
from tests.journeys.console.scene import Scene

WEBHOOKS = "/v1/gateway/webhooks"


async def test_a_created_webhook_shows_its_secret_once_and_can_be_changed_and_deleted(page: Page, scene: Scene) -> None:
    operator = scene.stage.operator
    await signed_in(page, scene.api_key, "/console/webhooks")
    await page.get_by_role("button", name="Create a webhook").click()
    await page.get_by_label("URL").fill("http://hooks.example.org")
    await page.get_by_role("button", name="Create", exact=True).click()
    await expect(page.get_by_label("URL")).to_have_attribute("aria-invalid", "true")
    await page.get_by_label("URL").fill("https://billing.hooks.example.com/second")
    await page.get_by_label("Description").fill("<img src=x onerror=alert(1)>")
    await page.get_by_label("Messages").select_option("both")
    group = await operator.group("told-of", [{"slug": scene.stage.slug}])
    await page.get_by_label("Id of a group (optional)").fill(group)
    await page.get_by_label("Details and costs").check()
    await page.get_by_role("button", name="Create", exact=True).click()
    await expect(page.get_by_label("Signing secret")).to_contain_text("whsec_")
    await page.get_by_role("link", name="Open the webhook").click()
    await expect(page.get_by_role("heading", name="/second")).to_be_visible()
    await expect(page.locator("body")).not_to_contain_text("whsec_")
    (webhook,) = [one for one in (await operator.call("GET", WEBHOOKS))["items"] if one["url"].endswith("/second")]
    assert (webhook["description"], webhook["include_details"]) == ("<img src=x onerror=alert(1)>", True)
    await page.get_by_role("button", name="Change").click()
    await page.get_by_label("Details and costs").uncheck()
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_text("not in its messages")).to_be_visible()
    assert (webhook["event_types"], webhook["group_id"]) == (["API_BILLING_USAGE", "LIMIT_ALERT"], group)
    await page.get_by_role("button", name="Turn off").click()
    await page.get_by_role("dialog").get_by_role("button", name="Turn off").click()
    await expect(page.get_by_role("button", name="Turn on")).to_be_visible()
    assert (await operator.call("GET", f"{WEBHOOKS}/{webhook['id']}"))["enabled"] is False
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await page.wait_for_url("**/console/webhooks")
    assert (await operator.ask("GET", f"{WEBHOOKS}/{webhook['id']}"))[0] == 404


async def test_a_webhook_that_somebody_else_changed_is_not_overwritten(page: Page, scene: Scene) -> None:
    operator = scene.stage.operator
    webhook = await operator.call("POST", WEBHOOKS, {"url": "https://billing.hooks.example.com/changed"})
    path = f"{WEBHOOKS}/{webhook['id']}"
    await signed_in(page, scene.api_key, f"/console/webhooks?id={webhook['id']}")
    await page.get_by_role("button", name="Rotate the secret").click()
    await page.get_by_role("button", name="Rotate", exact=True).click()
    await page.get_by_role("button", name="I have stored it").click()
    await page.get_by_role("button", name="Change").click()
    await operator.call("PATCH", path, {"description": "theirs"})
    await page.get_by_label("Description").fill("mine")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("alert")).to_contain_text("somebody else has changed this since you opened it")
    assert (await operator.call("GET", path))["description"] == "theirs"
    await operator.call("DELETE", path)


async def test_a_message_that_failed_is_sent_again(page: Page, scene: Scene) -> None:
    path = f"{WEBHOOKS}/{scene.webhooks['broken']}/deliveries"
    await signed_in(page, scene.api_key, f"/console/webhooks?id={scene.webhooks['broken']}")
    await page.get_by_role("button", name="Send a test message").click()
    row = page.get_by_role("region", name="Deliveries").get_by_role("row").filter(has_text="TEST").first
    await expect(row).to_contain_text("500")
    id = await row.get_by_role("rowheader").inner_text()
    attempts = {one["id"]: one["attempt_count"] for one in (await scene.stage.operator.call("GET", path))["items"]}[id]
    await row.get_by_role("button", name=f"Send {id} again").click()

    async def again() -> bool:
        items = (await scene.stage.operator.call("GET", path))["items"]
        return bool(next(one for one in items if one["id"] == id)["attempt_count"] > attempts)

    await scene.stage.until(again, "the message was sent again")
    await assert_accessible(page)
    await assert_fits(page)
