"""The search field: by keyboard to a group, a slug, a key and a request; and the usage beside groups in the tree."""

from typing import Any

from playwright.async_api import Page, expect

from tests.journeys.console.browsing import NARROW, assert_accessible, assert_fits, opened, signed_in
from tests.journeys.console.scene import SLUGS, Scene
from tests.journeys.product import models

HOSTILE = "<img src=x onerror='fail()'>\u202e"


async def test_the_keyboard_leads_to_a_group(page: Page, scene: Scene) -> None:
    await signed_in(page, scene.api_key)
    field = page.get_by_role("combobox", name="Find anything")
    await page.keyboard.press("/")
    await expect(field).to_be_focused()
    await expect(field).to_have_value("")
    await page.keyboard.type("SHIFT")
    option = page.get_by_role("listbox", name="Matches").get_by_role("option", name="night-shift")
    await expect(option).to_have_attribute("aria-selected", "true")
    await page.keyboard.press("Escape")
    await expect(option).to_be_hidden()
    await expect(field).to_have_value("SHIFT")

    await field.fill("s")
    await expect(page.get_by_role("group", name="Groups")).to_be_visible()
    await assert_accessible(page)
    selected = page.locator("[role=option][aria-selected=true]")
    first = await selected.inner_text()
    await page.keyboard.press("ArrowDown")
    assert await selected.inner_text() != first
    await page.keyboard.press("ArrowUp")
    await expect(selected).to_have_text(first)
    await field.fill("")
    await expect(page.get_by_role("listbox")).to_be_hidden()

    await page.keyboard.type("night-shi")  # Enter does not wait for the list
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/console/groups?id={scene.groups['night-shift']}")


async def test_a_slash_in_a_field_is_a_slash(page: Page, scene: Scene) -> None:
    await signed_in(page, scene.api_key, "/console/requests")
    slug = page.get_by_label("Slug", exact=True)
    await slug.focus()
    await page.keyboard.type("a/b")
    await expect(slug).to_have_value("a/b")


async def test_a_slug_a_key_and_a_request_are_opened(page: Page, scene: Scene) -> None:
    body = b'{"model":"%b","messages":[{"role":"user","content":"Hello"}]}' % SLUGS[2].encode()
    headers = {"authorization": f"Bearer {scene.keys['partner']}", "x-request-id": "asked-for-by-its-id"}
    assert (await scene.stage.post(headers, body))[0] == 200

    async def listed() -> Any:
        path = "/v1/gateway/requests"
        return (await scene.stage.operator.call("GET", path, request_id="asked-for-by-its-id"))["items"]

    await scene.stage.until(listed, "the call is listed")
    prefix = scene.keys["support"].split(".")[0]
    await signed_in(page, scene.api_key)
    for text, name, place, seen_text in (
        (SLUGS[1][5:9], SLUGS[1], "**/console/endpoints?id=*", SLUGS[1]),
        (prefix[:9], prefix, f"**/console/keys?q={prefix}", "support"),
        ("asked-for-by-its-id", "asked-for-by-its-id", "**/console/requests?request_id=asked-for-by-its-id", "partner"),
    ):
        await page.get_by_role("combobox", name="Find anything").fill(text)
        await page.get_by_role("listbox", name="Matches").get_by_role("option", name=name).first.click()
        await page.wait_for_url(place)
        await expect(page.get_by_role("main").get_by_text(seen_text, exact=True).first).to_be_visible()
    await page.get_by_role("combobox", name="Find anything").fill("nobody has this")
    await expect(page.get_by_text("Nothing matches.")).to_be_visible()


async def test_names_are_text_and_the_list_fits_a_phone(page: Page, scene: Scene) -> None:
    body = {
        "metadata": {"external_entity_id": f"hostile {HOSTILE}", "name": HOSTILE},
        "models": models(SLUGS[0]),
    }
    await scene.stage.operator.call("POST", "/v1/gateway/groups", body)
    await signed_in(page, scene.api_key)
    await page.set_viewport_size({"width": NARROW, "height": 800})
    await page.get_by_role("combobox", name="Find anything").fill("hostile <img")
    await expect(
        page.get_by_role("listbox", name="Matches").get_by_role("option", name="hostile <img")
    ).to_contain_text(HOSTILE)
    await assert_fits(page)
    await assert_accessible(page)


async def test_another_tenant_and_a_customer_meet_nothing(page: Page, scene: Scene) -> None:
    product = scene.stage.product
    other = product.command("workspace", "create", "searching", "--prefix", "searching")["api_key"]
    await signed_in(page, other)
    for text in ("support", scene.groups["support"], scene.keys["support"].split(".")[0], SLUGS[0]):
        await page.get_by_role("combobox", name="Find anything").fill(text)
        await expect(page.get_by_text("Nothing matches.")).to_be_visible()
        await page.keyboard.press("Escape")
    await opened(page, "/console/keys")
    await expect(page.get_by_role("region", name="Keys").locator("tbody tr")).to_have_count(1)
    await page.context.clear_cookies()
    await signed_in(page, scene.keys["support"])
    await expect(page.get_by_role("heading").first).to_be_visible()
    await expect(page.get_by_role("combobox", name="Find anything")).to_have_count(0)


async def test_the_tree_shows_the_month_beside_each_group(page: Page, scene: Scene) -> None:
    operator = scene.stage.operator

    async def month_of(entity: str) -> Any:
        items = (await operator.call("GET", "/v1/gateway/groups", month="true", external_entity_id=entity))["items"]
        return items[0]["month"]

    async def final() -> bool:
        return bool((await month_of("research"))["calls"] and (await month_of("support"))["calls"])

    await scene.stage.until(final, "the calls are final")
    month = await month_of("acme")
    assert month["calls"] > 0
    assert month["own"]["calls"] == 0
    await signed_in(page, scene.api_key, "/console/groups")
    row = page.locator(".tree .row", has=page.get_by_role("link", name="acme", exact=True))
    await expect(row).to_contain_text("its own 0 calls, 0 tokens")
    assert int((await row.locator(".month").inner_text()).split(" call")[0]) >= month["calls"]
    await assert_accessible(page)
    await assert_fits(page)
