"""The async page: queues as they fill, one request with its attempts, a cancellation, the signing secret."""

import re

from playwright.async_api import Page, expect

from tests.journeys.console.browsing import assert_accessible, assert_fits, opened, signed_in, until_dialog_is_gone
from tests.journeys.console.scene import Scene

_LEAVES_AT_ONCE = {"initial_delay_ms": 0, "max_attempts": 2}


async def test_an_operator_follows_requests_and_cancels_one(page: Page, scene: Scene) -> None:
    asynchronous = scene.asynchronous
    assert asynchronous is not None
    failed = await asynchronous.submit({"status": 500, "times": 2}, inference_retry_config=_LEAVES_AT_ONCE)
    await asynchronous.until_status(failed, "FAILED")
    running = await asynchronous.submit({"wait": True})  # the scene has one running, and two are the most
    await asynchronous.until_status(running, "IN_PROGRESS")
    waiting_id = await asynchronous.submit({"wait": True}, priority=2)

    await signed_in(page, scene.api_key, "/console/async")
    row = page.get_by_role("row", name="transcriber")
    await expect(row).to_contain_text("of priority 2")
    await assert_accessible(page)
    await assert_fits(page)
    await row.get_by_role("link", name="transcriber", exact=True).click()
    await expect(page.get_by_role("row", name="blue")).to_contain_text("of priority 2")

    await page.get_by_label("Request", exact=True).fill(waiting_id)
    await page.get_by_role("button", name="Look up").click()
    await expect(page.get_by_text("QUEUED", exact=True)).to_be_visible()
    await page.get_by_role("button", name="Cancel the request").click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel the request").click()
    await expect(page.get_by_text("CANCELED", exact=True).first).to_be_visible()
    assert (await asynchronous.state(waiting_id))["status"] == "CANCELED"

    await opened(page, f"/console/async?request={failed}&id={scene.model_id}")
    await expect(page.get_by_text("MODEL_PREDICT_ERROR")).to_be_visible()
    attempts = page.get_by_role("table", name="Attempts").get_by_role("row")
    await expect(attempts).to_have_count(3)  # with the head
    await assert_fits(page)
    await opened(page, "/console/async?request=areq_none")
    await expect(page.get_by_text("There is no such request")).to_be_visible()
    # Both run on: let later tests call the model.
    await scene.stage.operator.call("PATCH", asynchronous.deployment_path, {"max_concurrency": None})


async def test_the_signing_secret_is_shown_on_demand_and_rotated(page: Page, scene: Scene) -> None:
    before = (await scene.stage.operator.call("GET", "/v1/async/webhook_secret"))["secrets"]
    await signed_in(page, scene.api_key, "/console/async")
    assert before[0] not in await page.content()
    await page.get_by_role("button", name="Show").click()
    await expect(page.get_by_role("dialog")).to_contain_text(before[0])
    await page.get_by_role("button", name="Done").click()
    await until_dialog_is_gone(page)
    assert before[0] not in await page.content()
    await page.get_by_role("button", name="Rotate").click()
    await page.get_by_role("dialog").get_by_role("button", name="Rotate").click()
    secret_field = page.get_by_label("The secret", exact=True)
    await expect(secret_field).to_have_text(re.compile("whsec_"))
    after = (await scene.stage.operator.call("GET", "/v1/async/webhook_secret"))["secrets"]
    assert (await secret_field.text_content(), after[1]) == (after[0], before[0])
    await expect(page.get_by_label("The secret before")).to_have_text(before[0])
