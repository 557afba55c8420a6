"""Keys in the console: minted, shown once, used, revoked."""

import openai
import pytest
from playwright.async_api import Page, expect

from tests.journeys.conftest import Stage
from tests.journeys.console.browsing import assert_accessible, assert_fits, signed_in, until_dialog_is_gone
from tests.journeys.product import models


async def test_key_of_a_group_is_shown_once_works_and_is_revoked(page: Page, stage: Stage) -> None:
    await stage.key_without_limits()
    group = await stage.operator.group(f"{stage.name}-keys", models(stage.slug))
    await signed_in(page, stage.operator.api_key, f"/console/keys?group_id={group}")

    await page.get_by_label("Name (optional)").fill('<img src=x onerror="fail()">')
    await page.get_by_role("button", name="Create a key").click()
    api_key = await page.get_by_label("The new key", exact=True).locator("code").inner_text()
    assert (await stage.ask(api_key)).choices
    await assert_accessible(page)
    await page.get_by_role("button", name="I have stored it").click()
    await until_dialog_is_gone(page)
    row = page.get_by_role("row", name=api_key.split(".")[0])
    await expect(row).to_contain_text("onerror")
    assert api_key.split(".")[1] not in await page.content()
    assert api_key not in page.url + await page.evaluate(
        "() => JSON.stringify([{...localStorage}, {...sessionStorage}])"
    )

    await row.get_by_role("button", name="Revoke").click()
    await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    await expect(row).to_have_count(0)
    keys = await stage.operator.call("GET", f"/v1/gateway/groups/{group}/api_keys")
    assert keys["items"] == []

    async def is_refused() -> bool:
        try:
            await stage.ask(api_key)
        except openai.PermissionDeniedError:
            return True
        return False

    await stage.until(is_refused, "the revoked key is refused")


async def test_workspace_key_is_minted_with_its_type_and_found_by_its_group(page: Page, stage: Stage) -> None:
    group = await stage.operator.group(stage.name, models(stage.slug))
    await signed_in(page, stage.operator.api_key, "/console/keys")

    await page.get_by_label("Name (optional)").fill(stage.name)
    await page.get_by_label("Permission").select_option("WORKSPACE_EXPORT_METRICS")
    await page.get_by_role("button", name="Create a key").click()
    await page.get_by_role("button", name="I have stored it").click()
    keys = await stage.operator.call("GET", "/v1/api_keys", limit=1000)
    assert [key["type"] for key in keys["items"] if key["name"] == stage.name] == ["WORKSPACE_EXPORT_METRICS"]
    await expect(page.get_by_role("row", name=stage.name)).to_contain_text("Read metrics")
    await assert_fits(page)

    await page.get_by_label("External id of a group").fill(stage.name)
    await page.get_by_role("button", name="Show its keys").click()
    await page.wait_for_url(f"**/console/keys?group_id={group}")


@pytest.mark.parametrize(
    "path", ["/console/keys?group_id=grp_none", "/console/groups?id=grp_none", "/console/endpoints?id=ep_none"]
)
async def test_page_of_what_does_not_exist_says_so(page: Page, stage: Stage, path: str) -> None:
    await signed_in(page, stage.operator.api_key, path)
    await expect(page.get_by_role("alert")).to_be_visible()
