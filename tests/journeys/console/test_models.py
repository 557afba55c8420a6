"""The pages of models and deployments: an operator sets up one, operates it and reads its log."""

from playwright.async_api import Page, expect

from tests.journeys.console.browsing import assert_accessible, assert_fits, signed_in
from tests.journeys.console.scene import Scene


async def test_a_model_is_set_up_operated_and_deleted(page: Page, scene: Scene) -> None:
    operator = scene.stage.operator
    dialog = page.get_by_role("dialog")
    await signed_in(page, scene.api_key, "/console/models")
    await page.get_by_role("button", name="Create a model").click()
    await dialog.get_by_label("Name").fill("<b>tiny</b>")
    await dialog.get_by_role("button", name="Create").click()
    await expect(page.get_by_role("heading", name="<b>tiny</b>")).to_be_visible()
    await page.get_by_role("button", name="Create a deployment").click()
    await dialog.get_by_label("Name").fill("v1")
    await dialog.get_by_role("button", name="Create").click()
    await page.get_by_role("button", name="Set the replicas").click()
    await dialog.get_by_label("Replicas").fill(scene.stage.upstream.url)
    await dialog.get_by_role("button", name="Set the replicas").click()
    await expect(page.get_by_role("heading", name="v1 ACTIVE")).to_be_visible()
    await page.get_by_role("button", name="Deactivate v1").click()
    await dialog.get_by_role("button", name="Deactivate").click()
    await page.get_by_role("button", name="Activate v1").click()
    await expect(page.get_by_role("heading", name="v1 ACTIVE")).to_be_visible()
    await page.get_by_role("link", name="The model").click()
    await page.get_by_role("button", name="Point an environment").click()
    await dialog.get_by_role("button", name="Point").click()
    await expect(page.get_by_role("region", name="Environments", exact=True)).to_contain_text("production")
    (model,) = [one for one in (await operator.call("GET", "/v1/models"))["items"] if one["name"] == "<b>tiny</b>"]
    deployment = await operator.call("GET", f"/v1/models/{model['id']}/deployments/production")
    assert (deployment["name"], deployment["status"]) == ("v1", "ACTIVE")
    await assert_accessible(page)
    await assert_fits(page)
    await page.get_by_role("button", name="Delete", exact=True).click()
    await dialog.get_by_label("Type <b>tiny</b> to go on").fill("<b>tiny</b>")
    await dialog.get_by_role("button", name="Delete").click()
    await page.wait_for_url("**/console/models")
    assert (await operator.ask("GET", f"/v1/models/{model['id']}"))[0] == 404


async def test_a_log_is_searched_and_followed(page: Page, scene: Scene) -> None:
    assert scene.asynchronous is not None
    deployment = scene.asynchronous.deployment_id
    path = f"/v1/models/{scene.model_id}/deployments/{deployment}/logs/append"
    await scene.stage.operator.call("POST", path, {"logs": [{"message": "<script>weights</script>", "level": "ERROR"}]})
    await signed_in(page, scene.api_key, f"/console/models?id={scene.model_id}&deployment={deployment}")
    lines = page.get_by_role("region", name="Log lines")
    await expect(lines).to_contain_text("POST")
    await page.get_by_label("Text").fill("weights")
    await page.get_by_role("button", name="Search").click()
    await expect(lines.locator("> div")).to_have_count(1)
    await expect(lines).to_contain_text("ERROR <script>weights</script>")
    await scene.stage.operator.call("POST", path, {"logs": [{"message": "more weights"}]})
    await expect(lines.locator("> div")).to_have_count(2)
    await assert_accessible(page)
