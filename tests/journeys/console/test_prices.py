"""The page of prices: what is in force, what comes, what is missing; and a price set, changed and deleted."""

from datetime import UTC, datetime, timedelta

from playwright.async_api import Page, expect

from tests.journeys.console.browsing import assert_accessible, assert_fits, opened, signed_in
from tests.journeys.console.scene import Scene
from tests.journeys.product import models

PATH = "/v1/gateway/prices"
SLUG = "acme/priced"
UNPRICED = "acme/unpriced"


def day(after: int = 0) -> str:
    """A UTC date, so many days after today."""
    return (datetime.now(UTC) + timedelta(days=after)).date().isoformat()


async def test_unpriced_slugs_are_on_top_and_get_a_price(page: Page, scene: Scene) -> None:
    stage = scene.stage
    model = await stage.operator.model("unpriced", stage.upstream.url)
    await stage.operator.endpoint(UNPRICED, model)
    key = await stage.operator.key(await stage.operator.group("unpriced", models(UNPRICED)))

    async def is_answered() -> bool:
        return await scene.call(key, UNPRICED) == 200

    await stage.until(is_answered, "the proxy knows the slug")
    await stage.events_of("unpriced", 1)
    await signed_in(page, scene.api_key, "/console/prices")
    missing = page.get_by_role("table", name="Slugs without a price").get_by_role("row").filter(has_text=UNPRICED)
    await expect(missing).to_contain_text("none")
    await expect(missing.locator("td").first).to_have_text("1")
    await assert_accessible(page)
    await page.get_by_role("link", name=f"Set a price of {UNPRICED}").click()
    await expect(page.get_by_label("Slug")).to_have_value(UNPRICED)
    await expect(page.get_by_label("Valid from")).to_have_value(f"{day()[:7]}-01")
    await page.get_by_label("Currency").fill("eur")
    await page.get_by_label("Input, per million tokens", exact=True).fill("1.50")
    await page.get_by_label("Output, per million tokens", exact=True).fill("6")
    await page.get_by_role("button", name="Save the price").click()
    await expect(page.get_by_role("heading", level=2)).to_have_text(UNPRICED)
    await expect(page.get_by_text("in force", exact=True)).to_be_visible()
    await opened(page, "/console/prices")
    await expect(page.get_by_role("table", name="Prices").get_by_role("row").filter(has_text=UNPRICED)).to_contain_text(
        "1.50"
    )
    await expect(page.get_by_role("row", name=UNPRICED).filter(has_text="Set a price")).to_have_count(0)
    await assert_accessible(page)
    await assert_fits(page)


async def test_a_price_is_created_with_errors_beside_its_fields_changed_and_deleted(page: Page, scene: Scene) -> None:
    operator = scene.stage.operator
    base = {"slug": SLUG, "currency": "EUR", "input_per_million": "3", "output_per_million": "15"}
    await operator.call("PUT", PATH, {**base, "valid_from": "2026-01-01"})
    await signed_in(page, scene.api_key, f"/console/prices?new=1&slug={SLUG}")
    await page.get_by_label("Valid from").fill(day(10))
    await page.get_by_label("Currency").fill("euros")
    await page.get_by_label("Input, per million tokens", exact=True).fill("4,00")
    await page.get_by_label("Output, per million tokens", exact=True).fill("20")
    await page.get_by_text("Cache writes, sound, pictures").click()
    await page.get_by_label("Tier and multiplier").fill("priority 1.23456")
    await page.get_by_role("button", name="Save the price").click()
    for name, message in (("input_per_million", "12 digits"), ("service_tiers", "4 digits")):
        control = page.locator(f'[name="{name}"]')
        await expect(control).to_have_attribute("aria-invalid", "true")
        await expect(page.locator(".field").filter(has=control).locator(".fault")).to_contain_text(message)
    await assert_accessible(page)
    await page.get_by_label("Currency").fill("eur")
    await page.get_by_label("Input, per million tokens", exact=True).fill("4.00")
    await page.get_by_label("Tier and multiplier").fill("priority 1.25\n<b>flex</b> 0.5")
    await page.get_by_label("Above so many input tokens").fill("200000")
    await page.get_by_label("Input, above the bound", exact=True).fill("8")
    await page.get_by_label("Cached input, above the bound").fill("1")
    await page.get_by_label("Output, above the bound").fill("40")
    await page.get_by_role("button", name="Save the price").click()

    coming = page.get_by_role("region", name=f"Price from {day(10)}")
    await expect(coming).to_contain_text("comes")
    await expect(coming).to_contain_text("Service tier <b>flex</b>")
    stored = (await operator.call("GET", f"{PATH}?slug={SLUG}"))["items"][1]
    assert stored["cached_input_per_million"] == "4.00"
    assert stored["long_context"]["output_per_million"] == "40.00"
    assert stored["service_tiers"] == {"<b>flex</b>": {"multiplier": "0.5"}, "priority": {"multiplier": "1.25"}}
    await expect(page.get_by_role("region", name="Price from 2026-01-01")).to_contain_text("in force")
    await assert_accessible(page)
    await assert_fits(page)

    await coming.get_by_role("button", name="Change").click()
    await coming.get_by_label("Input, per million tokens", exact=True).fill("5")
    await coming.get_by_role("button", name="Save the price").click()
    await expect(coming).to_contain_text("5.00 EUR per million tokens")
    changed = (await operator.call("GET", f"{PATH}?slug={SLUG}"))["items"][1]
    assert {**changed, "input_per_million": "4.00"} | _followers(changed, "4.00") == stored

    await coming.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog", name="Delete this price?")
    await expect(dialog).to_contain_text("the price from 2026-01-01")
    await dialog.get_by_role("button", name="Delete").click()
    await expect(coming).to_have_count(0)
    remaining = (await operator.call("GET", f"{PATH}?slug={SLUG}"))["items"]
    assert [one["valid_from"] for one in remaining] == ["2026-01-01"]
    await page.get_by_role("button", name="Delete the price from 2026-01-01").click()
    await expect(dialog).to_contain_text("counted as unpriced")
    await expect(dialog).to_contain_text("reports and statements")
    await dialog.get_by_role("button", name="Delete").click()
    await expect(page.get_by_text("No price is in force")).to_be_visible()


def _followers(price: dict[str, str], amount: str) -> dict[str, str]:
    """The members that are as the price of input, with this one."""
    return {name: amount for name, value in price.items() if value == price["input_per_million"]}


async def test_a_prefix_of_another_workspace_is_refused_beside_the_slug(page: Page, scene: Scene) -> None:
    await signed_in(page, scene.api_key, "/console/prices?new=1&slug=stranger/chat")
    await page.get_by_label("Currency").fill("EUR")
    await page.get_by_label("Input, per million tokens", exact=True).fill("1")
    await page.get_by_label("Output, per million tokens", exact=True).fill("1")
    await page.get_by_role("button", name="Save the price").click()
    slug = page.get_by_label("Slug")
    await expect(slug).to_have_attribute("aria-invalid", "true")
    await expect(page.locator(".field").filter(has=slug).locator(".fault")).not_to_be_empty()


async def test_other_keys_are_told_what_they_lack(page: Page, scene: Scene) -> None:
    await signed_in(page, scene.workspace_keys["WORKSPACE_INVOKE"], "/console/prices")
    await expect(page.get_by_text("Prices needs a key with management scope")).to_be_visible()
    assert await page.get_by_role("table").count() == 0
    await page.context.clear_cookies()
    await signed_in(page, scene.keys["support"], "/console/prices")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Usage of support")
