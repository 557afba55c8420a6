"""Keys in the console: minted, shown once, used, revoked."""

import time

import openai
from playwright.async_api import Page, Route, expect

from tests.journeys.conftest import Stage
from tests.journeys.console.browsing import (
    Faults,
    assert_accessible,
    assert_fits,
    logged_in,
    opened,
    signed_in,
    until_dialog_is_gone,
)
from tests.journeys.console.scene import Scene
from tests.journeys.product import models

REPORT = "/v1/gateway/usage_report"


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


async def test_a_key_whose_answer_was_lost_is_not_created_twice(page: Page, stage: Stage, faults: Faults) -> None:
    await stage.key_without_limits()
    group = await stage.operator.group(f"{stage.name}-lost", models(stage.slug))
    await signed_in(page, stage.operator.api_key, f"/console/keys?group_id={group}")

    async def lose_answer(route: Route) -> None:
        if route.request.method != "POST":
            await route.continue_()
            return
        assert (await route.fetch()).ok
        await route.abort()

    keys = f"/v1/gateway/groups/{group}/api_keys"
    await page.route(f"**{keys}*", lose_answer)
    await page.get_by_label("Name (optional)").fill("laptop")
    await page.get_by_role("button", name="Create a key").click()
    await expect(page.get_by_text("Tollgate does not answer")).to_be_visible()
    faults.expect("console: Failed to load resource")
    await page.unroute_all()
    await page.get_by_role("button", name="Create a key").click()
    api_key = await page.get_by_label("The new key", exact=True).locator("code").inner_text()
    assert (await stage.ask(api_key)).choices
    assert len((await stage.operator.call("GET", keys))["items"]) == 1
    await page.get_by_role("button", name="I have stored it").click()
    await until_dialog_is_gone(page)
    await page.get_by_label("Name (optional)").fill("laptop")
    await page.get_by_role("button", name="Create a key").click()  # another key, as it is asked for
    await page.get_by_role("button", name="I have stored it").click()
    assert len((await stage.operator.call("GET", keys))["items"]) == 2


HOSTILE = '<img src=x onerror="fail()">'


async def test_key_of_a_group_is_restricted_edited_and_disabled(page: Page, stage: Stage) -> None:
    await stage.key_without_limits()
    group = await stage.operator.group(f"{stage.name}-set", models(stage.slug))
    keys = f"/v1/gateway/groups/{group}/api_keys"
    await signed_in(page, stage.operator.api_key, f"/console/groups?id={group}")

    form = page.locator("form").filter(has=page.get_by_role("button", name="Create a key"))
    await form.get_by_label("Name (optional)").fill(HOSTILE)
    await form.get_by_text("Expiry, addresses, slugs and limits").click()
    await form.get_by_label("Expires at (UTC, optional)").fill("2099-01-31T12:00:00")
    await form.get_by_label("Addresses (optional)").fill("203.0.113.1/24")
    await form.get_by_label("Slugs (optional)").fill(stage.slug)
    await form.get_by_label("Requests", exact=True).fill("60")
    await form.get_by_label("Spend limit a day (optional)").fill("5 EUR")
    await form.get_by_role("button", name="Create a key").click()
    await expect(form.get_by_role("alert")).to_contain_text("203.0.113.0/24")  # the API says what to write instead
    await expect(form.get_by_label("Addresses (optional)")).to_be_focused()
    await form.get_by_label("Addresses (optional)").fill("127.0.0.0/8\n203.0.113.0/24")
    await form.get_by_role("button", name="Create a key").click()
    await page.get_by_role("button", name="I have stored it").click()
    (key,) = (await stage.operator.call("GET", keys))["items"]
    assert (key["expires_at"], key["slugs"], key["name"]) == ("2099-01-31T12:00:00.000Z", [stage.slug], HOSTILE)
    assert key["allowed_ips"] == ["127.0.0.0/8", "203.0.113.0/24"]
    assert key["rate_limits"] == [{"type": "REQUEST", "unit": "MINUTE", "threshold": 60}]
    assert [limit["amount"] for limit in key["spend_limits"]] == ["5.00"]
    row = page.get_by_role("row", name=key["prefix"])
    await expect(row).to_contain_text("expires in")
    await expect(row).to_contain_text("60 requests a minute")
    await assert_accessible(page)
    await assert_fits(page)

    await row.get_by_role("button", name="Edit").press("Enter")
    dialog = page.get_by_role("dialog", name=f"Edit {key['prefix']}")
    await assert_accessible(page)
    await assert_fits(page)
    await dialog.get_by_label("Requests", exact=True).fill("7")
    await dialog.get_by_label("Expires at (UTC, optional)").fill("")
    await dialog.get_by_role("button", name="Save").press("Enter")
    await until_dialog_is_gone(page)
    await expect(row).to_contain_text("7 requests a minute")
    edited = await stage.operator.call("GET", f"{keys}/{key['prefix']}")
    changes = {"expires_at": None, "rate_limits": [{"type": "REQUEST", "unit": "MINUTE", "threshold": 7}]}
    assert edited == key | changes

    await row.get_by_role("button", name="Disable").click()
    await page.get_by_role("dialog").get_by_role("button", name="Disable").click()
    await expect(row.locator(".badge")).to_have_text("disabled")
    assert (await stage.operator.call("GET", f"{keys}/{key['prefix']}"))["disabled"]
    await row.get_by_role("button", name="Enable").click()
    await expect(row.locator(".badge")).to_have_text("active")


async def test_key_is_rotated_in_a_dialog_and_the_new_one_is_shown_once(page: Page, stage: Stage) -> None:
    await stage.key_without_limits()
    group = await stage.operator.group(f"{stage.name}-rotated", models(stage.slug))
    old = (await stage.operator.key(group)).split(".")[0]
    await signed_in(page, stage.operator.api_key, f"/console/keys?group_id={group}")

    rotate = page.get_by_role("button", name=f"Rotate {old}")
    await rotate.press("Enter")
    dialog = page.get_by_role("dialog", name="Rotate this key")
    await assert_accessible(page)
    await page.keyboard.press("Escape")
    await until_dialog_is_gone(page)
    await expect(rotate).to_be_focused()
    await rotate.press("Enter")
    await dialog.get_by_label("Both keys work for").select_option("1 day")
    await dialog.get_by_role("button", name="Rotate").press("Enter")
    notice = page.get_by_role("region", name="The new key")
    api_key = await notice.locator("code.copyable").inner_text()
    await expect(notice).to_contain_text(f"It takes the place of {old}")
    assert (await stage.ask(api_key)).choices
    await page.get_by_role("button", name="I have stored it").click()
    new, secret = api_key.split(".")
    row = page.get_by_role("row", name=old)
    await expect(row).to_contain_text("rotated ends in")
    await expect(row).to_contain_text(new)
    await expect(row.get_by_role("button", name="Rotate")).to_have_count(0)
    await expect(page.get_by_role("row", name=f"{new} none active")).to_have_count(1)
    assert secret not in await page.content()
    await assert_accessible(page)
    await assert_fits(page)


async def test_workspace_key_is_minted_with_its_type_and_found_by_its_group(page: Page, stage: Stage) -> None:
    group = await stage.operator.group(stage.name, models(stage.slug))
    await signed_in(page, stage.operator.api_key, "/console/keys")

    await page.get_by_text("New key of the workspace").click()
    await page.get_by_label("Name (optional)").fill(stage.name)
    await page.get_by_label("Permission").select_option("WORKSPACE_EXPORT_METRICS")
    await page.get_by_role("button", name="Create a key").click()
    await page.get_by_role("button", name="I have stored it").click()
    keys = await stage.operator.call("GET", "/v1/api_keys", limit=1000)
    assert [key["type"] for key in keys["items"] if key["name"] == stage.name] == ["WORKSPACE_EXPORT_METRICS"]
    await expect(page.get_by_role("row", name=stage.name)).to_contain_text("Read metrics")
    await assert_fits(page)

    key = (await stage.operator.key(group)).split(".")[0]
    await page.get_by_label("External id of a group").fill(stage.name)
    await page.get_by_role("button", name="Show", exact=True).click()
    await page.wait_for_url(f"**/console/keys?external_entity_id={stage.name}")
    rows = page.get_by_role("region", name="Keys").locator("tbody tr")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text(key)
    await rows.get_by_role("link", name=stage.name).click()
    await page.wait_for_url(f"**/console/keys?group_id={group}")


async def test_keys_of_all_groups_are_in_one_list_with_their_calls(page: Page, scene: Scene) -> None:
    prefixes = {entity: key.split(".")[0] for entity, key in scene.keys.items()}
    reported = await _calls_by_key(scene)
    await signed_in(page, scene.api_key, "/console/keys?type=FEDERATED")
    for entity, prefix in prefixes.items():
        row = page.get_by_role("row", name=prefix)
        await expect(row.get_by_role("link", name=entity, exact=True)).to_be_visible()
        if prefix in reported:
            assert int(await row.locator("[data-head='Calls this month']").inner_text()) >= reported[prefix]
    await assert_accessible(page)
    await assert_fits(page)
    await page.get_by_label("Name or prefix").fill(prefixes["support"])
    await page.get_by_role("button", name="Show", exact=True).click()
    rows = page.get_by_role("region", name="Keys").locator("tbody tr")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("support")
    await page.get_by_role("link", name="Clear the filter").click()
    await expect(page.get_by_role("row", name="workspace_invoke")).to_contain_text("Call platform models")


async def _calls_by_key(scene: Scene) -> dict[str, int]:
    """The calls of this month by key, once those of the scene are final."""
    start = time.strftime("%Y-%m-01T00:00:00Z", time.gmtime())

    async def final() -> dict[str, int] | None:
        items = (await scene.stage.operator.call("GET", REPORT, start=start, group_by="key", limit=1000))["items"]
        calls = {item["api_key_prefix"]: item["calls"] for item in items}
        return calls if scene.keys["partner"].split(".")[0] in calls else None

    return dict(await scene.stage.until(final, "the calls are final"))


async def test_page_of_what_does_not_exist_says_so(page: Page, stage: Stage) -> None:
    await logged_in(page, stage.operator.api_key)
    for path in ("keys?group_id=grp_none", "groups?id=grp_none", "endpoints?id=ep_none"):
        await opened(page, f"/console/{path}")
        await expect(page.get_by_role("alert")).to_be_visible()
