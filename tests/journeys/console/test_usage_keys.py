"""Customers manage keys of their own group on the usage page, with the keyboard alone."""

from typing import Any

from playwright.async_api import Page, expect

from tests.journeys.console.browsing import assert_accessible, assert_fits, signed_in, until_dialog_is_gone
from tests.journeys.console.scene import SLUGS, Scene
from tests.journeys.product import models

HOSTILE = '<img src=x onerror="fail()">'


async def new_key(page: Page) -> str:
    """Read the key that the page shows once, say that it is stored, and see that it is gone."""
    key = await page.get_by_label("The new key", exact=True).locator("code.copyable").inner_text()
    await assert_accessible(page)
    stored = page.get_by_role("button", name="I have stored it")
    await stored.focus()
    await page.keyboard.press("Enter")
    await expect(stored).to_have_count(0)
    assert key.split(".")[1] not in await page.content()
    assert key not in page.url + await page.evaluate("() => JSON.stringify([{...localStorage}, {...sessionStorage}])")
    return key


async def press(page: Page, name: str, row: str) -> None:
    button = page.get_by_role("row", name=row).get_by_role("button", name=name)
    await button.focus()
    await page.keyboard.press("Enter")


async def test_a_customer_creates_rotates_and_revokes_a_key(page: Page, scene: Scene) -> None:
    operator = scene.stage.operator
    group = await operator.group("self-serving", models(SLUGS[0]))
    own = await operator.key(group)
    path = f"/v1/gateway/groups/{group}/api_keys"
    await signed_in(page, own, "/console/usage")

    await page.get_by_label("Name (optional)").fill(HOSTILE)
    await page.get_by_label("Addresses (optional)").fill("127.0.0.1/8")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text("127.0.0.0/8")  # the API says what to write instead
    await page.get_by_label("Addresses (optional)").fill("127.0.0.0/8, 2001:db8::/32")
    await page.get_by_label("Expires at (UTC, optional)").fill("2099-01-31T12:00:00")
    await page.get_by_label("Addresses (optional)").press("Enter")
    first = await new_key(page)
    prefix = first.split(".")[0]
    first_item: Any = await operator.call("GET", f"{path}/{prefix}")
    assert (first_item["name"], first_item["expires_at"]) == (HOSTILE, "2099-01-31T12:00:00.000Z")
    assert first_item["allowed_ips"] == ["127.0.0.0/8", "2001:db8::/32"]

    async def answers(key: str, status: int) -> bool:
        return await scene.call(key, SLUGS[0]) == status

    await scene.stage.until(lambda: answers(first, 200), "the new key is answered")
    await expect(page.get_by_role("row", name=prefix)).to_contain_text("onerror")

    await press(page, "Rotate", prefix)
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Both keys work for").select_option("0")
    await assert_accessible(page)
    await dialog.get_by_role("button", name="Rotate", exact=True).press("Enter")
    await until_dialog_is_gone(page)
    second = await new_key(page)
    await scene.stage.until(lambda: answers(second, 200), "the key that took its place is answered")
    await scene.stage.until(lambda: answers(first, 403), "the rotated key is refused")
    await expect(page.get_by_role("row", name=prefix).first).to_contain_text("expired")

    await press(page, "Revoke", second.split(".")[0])
    await page.get_by_role("dialog").get_by_role("button", name="Revoke").press("Enter")
    await until_dialog_is_gone(page)
    await scene.stage.until(lambda: answers(second, 403), "the revoked key is refused")
    prefixes = [key["prefix"] for key in (await operator.call("GET", path))["items"]]
    assert prefixes == [own.split(".")[0], prefix]
    await assert_accessible(page)
    await assert_fits(page)
    trail = await operator.call("GET", "/v1/audit_events", actor=own.split(".")[0])
    assert [event["action"] for event in trail["items"]] == ["key.revoke", "key.rotate", "key.mint"]


async def test_a_restricted_key_changes_no_key_that_may_do_more(page: Page, scene: Scene) -> None:
    operator = scene.stage.operator
    group = await operator.group("trial", models(SLUGS[0]))
    freer = (await operator.key(group)).split(".")[0]
    body = {"slugs": [SLUGS[0]], "rate_limits": [{"type": "REQUEST", "unit": "MINUTE", "threshold": 5}]}
    restricted = (await operator.call("POST", f"/v1/gateway/groups/{group}/api_keys", body))["api_key"]
    await signed_in(page, restricted, "/console/usage")
    row = page.get_by_role("row", name=freer)
    await expect(row).to_contain_text("may do more than your key")
    await expect(row.get_by_role("button")).to_have_count(0)
    await page.get_by_role("button", name="Create a key").press("Enter")
    heir = (await new_key(page)).split(".")[0]
    keys = (await operator.call("GET", f"/v1/gateway/groups/{group}/api_keys"))["items"]
    (item,) = [key for key in keys if key["prefix"] == heir]
    assert {name: item[name] for name in body} == body
