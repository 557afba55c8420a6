"""Endpoints in the console: a target is tested before it is saved, and the test leaves nothing."""

from typing import Any

from playwright.async_api import Page, Route, expect

from policy.endpoints import PROVIDERS
from tests.journeys.conftest import Stage
from tests.journeys.console.browsing import Faults, assert_accessible, assert_fits, signed_in


async def test_endpoint_is_created_after_a_test_call_that_leaves_nothing(page: Page, stage: Stage) -> None:
    await stage.operator.model(stage.name, stage.upstream.url)
    await signed_in(page, stage.operator.api_key, "/console/endpoints?new=1")

    await page.get_by_label("Slug").fill(stage.slug)
    await page.get_by_label("Model", exact=True).select_option(stage.name)
    await page.get_by_label("Model name sent upstream").fill("upstream-name")
    await page.get_by_role("button", name="Test the target").click()
    await expect(page.get_by_text("Status 200")).to_be_visible()
    await expect(page.get_by_label("First lines of the answer")).to_contain_text("Hello there!")
    assert await _left(stage) == []
    await assert_accessible(page)
    await assert_fits(page)

    await page.get_by_role("button", name="Create the endpoint").click()
    await page.wait_for_url("**/console/endpoints?id=*")
    await expect(page.get_by_role("heading", name=stage.slug)).to_be_visible()
    endpoints = await stage.operator.call("GET", "/v1/gateway/endpoints", limit=1000)
    assert stage.slug in [endpoint["slug"] for endpoint in endpoints["items"]]


async def test_region_of_the_setting_is_chosen_once(page: Page, stage: Stage) -> None:
    await stage.operator.model(stage.name, stage.upstream.url)
    await signed_in(page, stage.operator.api_key, "/console/endpoints?new=1")
    await page.get_by_label("Slug").fill(stage.slug)
    await page.get_by_label("Model", exact=True).select_option(stage.name)
    await page.get_by_label("Region").select_option("eu-central")
    await page.get_by_role("button", name="Create the endpoint").click()
    await page.get_by_role("dialog").get_by_role("button", name="Save without a test").click()
    await page.wait_for_url("**/console/endpoints?id=*")
    await expect(page.get_by_text("eu-central")).to_be_visible()
    await expect(page.get_by_label("Region")).to_have_count(0)
    endpoints = await stage.operator.call("GET", "/v1/gateway/endpoints", limit=1000)
    assert {one["slug"]: one["region"] for one in endpoints["items"]}[stage.slug] == "eu-central"


async def test_target_that_fails_its_test_is_saved_only_when_asked_twice(page: Page, stage: Stage) -> None:
    await stage.key_without_limits()
    broken = await stage.operator.model(f"{stage.name}-broken", "http://127.0.0.1:9")
    await signed_in(page, stage.operator.api_key, f"/console/endpoints?slug={stage.slug}")

    await page.get_by_label("Model", exact=True).select_option(broken)
    await page.get_by_role("button", name="Test the target").click()
    await expect(page.get_by_text("The test call failed.")).to_be_visible()
    assert await _left(stage) == []
    await page.get_by_role("button", name="Save the target").click()
    await page.get_by_role("dialog").get_by_role("button", name="Back").click()
    assert await _model(stage) != broken
    await page.get_by_role("button", name="Save the target").click()
    async with page.expect_navigation():
        await page.get_by_role("dialog").get_by_role("button", name="Save without a test").click()
    assert await _model(stage) == broken

    await page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Type").fill(stage.slug)
    await dialog.get_by_role("button", name="Delete").click()
    await page.wait_for_url("**/console/endpoints")
    assert await _model(stage) is None


async def test_a_target_that_somebody_else_changed_is_not_overwritten(page: Page, stage: Stage) -> None:
    await stage.key_without_limits()
    mine = await stage.operator.model(f"{stage.name}-mine", stage.upstream.url)
    theirs = await stage.operator.model(f"{stage.name}-theirs", stage.upstream.url)
    await signed_in(page, stage.operator.api_key, f"/console/endpoints?slug={stage.slug}")
    await page.get_by_label("Model", exact=True).select_option(mine)
    endpoints = (await stage.operator.call("GET", "/v1/gateway/endpoints", limit=1000))["items"]
    (one,) = [endpoint for endpoint in endpoints if endpoint["slug"] == stage.slug]
    targets = [{"provider": "PLATFORM", "model_id": theirs, "target_model": "upstream-name"}]
    await stage.operator.call("PATCH", f"/v1/gateway/endpoints/{one['id']}", {"targets": targets})
    await page.get_by_role("button", name="Save the target").click()
    await page.get_by_role("dialog").get_by_role("button", name="Save without a test").click()
    await expect(page.get_by_text("somebody else has changed this since you opened it")).to_be_visible()
    assert await _model(stage) == theirs


async def test_what_a_test_of_a_target_could_not_delete_is_named_and_deleted_later(
    page: Page, stage: Stage, faults: Faults
) -> None:
    await stage.key_without_limits()
    await signed_in(page, stage.operator.api_key, f"/console/endpoints?slug={stage.slug}")
    problem_body = {"error": "The database is away.", "code": "DATABASE_UNAVAILABLE"}

    async def refuse_to_delete(route: Route) -> None:
        if route.request.method == "DELETE":  # the page may still be asking for the endpoint that it shows
            await route.fulfill(status=503, json=problem_body)
        else:
            await route.continue_()

    await page.route("**/v1/gateway/endpoints/*", refuse_to_delete)

    await page.get_by_role("button", name="Test the target").click()
    await expect(page.get_by_text("Could not delete the endpoint acme/console-test-")).to_be_visible()
    await expect(page.get_by_text("The target answers.")).to_be_visible()
    faults.expect("console: Failed to load resource", "answer: 503")
    assert len(await _left(stage)) == 1

    await page.unroute_all()
    await page.goto("/console/endpoints")
    await page.get_by_role("button", name="Delete what tests left").click()
    await expect(page.get_by_role("button", name="Delete what tests left")).to_have_count(0)
    assert await _left(stage) == []


LABELS = {
    "model_id": ["Model"],
    "environment_name": ["Environment (optional)"],
    "secret_id": ["Secret"],
    "target_model": ["Model name sent upstream"],
    "base_url": ["Base URL"],
    "vendor_c_config": ["Project", "Location"],
}


async def test_form_of_a_target_has_the_fields_of_its_provider_and_no_other(page: Page, stage: Stage) -> None:
    await signed_in(page, stage.operator.api_key, "/console/endpoints?new=1")
    for name, provider in PROVIDERS.items():
        await page.get_by_label("Target", exact=True).select_option(name)
        for field, labels in LABELS.items():
            is_shown = field in provider.required | provider.optional
            for label in labels:
                await expect(page.get_by_label(label, exact=True)).to_have_count(int(is_shown))


async def test_target_in_the_vendors_cloud_is_saved_with_its_project_and_location(page: Page, stage: Stage) -> None:
    await stage.operator.call("POST", "/v1/secrets", {"name": f"{stage.name}-cloud", "value": "bm8ga2V5"})
    await signed_in(page, stage.operator.api_key, "/console/endpoints?new=1")
    await page.get_by_label("Slug").fill(stage.slug)
    await page.get_by_label("Target", exact=True).select_option("VENDOR_C")
    await page.get_by_label("Secret", exact=True).select_option(f"{stage.name}-cloud")
    await page.get_by_label("Model name sent upstream").fill("m")
    await page.get_by_label("Project").fill("my-project")
    await page.get_by_label("Location").fill("europe-west4")
    await page.get_by_role("button", name="Create the endpoint").click()
    await page.get_by_role("dialog").get_by_role("button", name="Save without a test").click()
    await page.wait_for_url("**/console/endpoints?id=*")
    target = (await _endpoint(stage))["targets"][0]
    assert target["vendor_c_config"] == {"project_id": "my-project", "location": "europe-west4"}
    await expect(page.get_by_text("Google Vertex AI (cloud), model m")).to_be_visible()


async def test_options_of_a_target_are_shown_kept_and_changed(page: Page, stage: Stage) -> None:
    await stage.key_without_limits()
    options = {"dialects": ["RESPONSES", "MESSAGES"], "price_options": "REFUSE"}
    endpoint = await _endpoint(stage)
    path = f"/v1/gateway/endpoints/{endpoint['id']}"
    await stage.operator.call("PATCH", path, {"targets": [endpoint["targets"][0] | options]})
    await signed_in(page, stage.operator.api_key, f"/console/endpoints?slug={stage.slug}")

    await page.get_by_label("State stored at the vendor").select_option("PASS")
    await page.get_by_role("button", name="Save the target").click()
    async with page.expect_navigation():
        await page.get_by_role("dialog").get_by_role("button", name="Save without a test").click()
    changed = (await _endpoint(stage))["targets"][0]
    assert changed == endpoint["targets"][0] | options | {"upstream_state": "PASS"}
    await expect(page.get_by_text("state stored at the vendor passes")).to_be_visible()


async def _endpoint(stage: Stage) -> dict[str, Any]:
    """The endpoint of the stage's slug."""
    endpoints = await stage.operator.call("GET", "/v1/gateway/endpoints", limit=1000)
    return next(one for one in endpoints["items"] if one["slug"] == stage.slug)


async def _left(stage: Stage) -> list[str]:
    """Return the names of what tests of targets left behind."""
    endpoints = await stage.operator.call("GET", "/v1/gateway/endpoints", limit=1000)
    groups = await stage.operator.call("GET", "/v1/gateway/groups", limit=1000)
    names = [one["slug"] for one in endpoints["items"]]
    for group in groups["items"]:
        names += [model["slug"] for model in group["models"]]
    return [name for name in names if "/console-test-" in name]


async def _model(stage: Stage) -> str | None:
    """The model that the slug of the stage leads to; None if it leads nowhere."""
    endpoints = await stage.operator.call("GET", "/v1/gateway/endpoints", limit=1000)
    return next((one["targets"][0]["model_id"] for one in endpoints["items"] if one["slug"] == stage.slug), None)
