"""A customer's usage page: by the group's key, and in another site's frame by a link."""

import csv
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from playwright.async_api import BrowserContext, Locator, Page, expect

from tests.journeys.console.browsing import Faults, assert_accessible, assert_fits, opened, signed_in
from tests.journeys.console.scene import SLUGS, Scene
from tests.journeys.product import models
from tests.ports import own_port
from tests.waiting import eventually


async def test_a_customer_sees_its_own_usage_and_nothing_else(page: Page, scene: Scene) -> None:
    await scene.stage.events_of("support", 12)
    await signed_in(page, scene.keys["support"], "/console/usage")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Usage of support")
    by_slug = page.get_by_role("region", name="Usage by slug in 31 days")
    await expect(by_slug).to_contain_text(SLUGS[0])
    await expect(page.get_by_role("table", name="Limits")).to_contain_text("requests per minute")
    prefix = scene.keys["support"].split(".")[0]
    await expect(page.get_by_role("table", name="Keys")).to_contain_text(prefix)
    text = await page.evaluate("() => document.body.innerText")
    others = [
        word
        for name, key in scene.keys.items()
        if name != "support"
        for word in (scene.groups[name], key.split(".")[0])
    ]
    assert [word for word in (*others, "research", "night-shift") if word in text] == []
    await assert_accessible(page)
    await assert_fits(page)
    await opened(page, "/console/groups")  # any other address shows the same
    await expect(page.get_by_role("heading", level=1)).to_have_text("Usage of support")
    assert await page.get_by_role("navigation").count() == 0


async def test_a_workspace_key_is_sent_to_groups(page: Page, scene: Scene) -> None:
    await signed_in(page, scene.api_key, "/console/usage")
    await expect(page.get_by_text("You are logged in with a workspace key")).to_be_visible()
    await expect(page.get_by_role("link", name="Groups")).to_have_attribute("href", "/console/groups")


@asynccontextmanager
async def portal(port: int, address: str) -> AsyncIterator[str]:
    """The URL of a customer portal at `http://localhost:{port}`, whose page frames `address`."""

    async def framing(_request: web.Request) -> web.Response:
        no_icon = "<link rel=icon href=data:,>"  # otherwise Chromium asks for one, now or when the portal is gone
        head = f"<!doctype html><html lang=en><title>Portal</title>{no_icon}"
        return web.Response(text=f'{head}<iframe title=usage src="{address}"></iframe>', content_type="text/html")

    app = web.Application()
    app.router.add_get("/", framing)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://localhost:{port}"
    finally:
        await runner.cleanup()


async def test_a_portal_frames_the_usage_of_one_group(context: BrowserContext, faults: Faults, scene: Scene) -> None:
    path = f"/v1/gateway/groups/{scene.groups['partner']}/usage_links"
    port = own_port()
    created = await scene.stage.operator.call("POST", path, {"frame_origins": [f"http://localhost:{port}"]})
    page = await context.new_page()
    await page.set_viewport_size({"width": 320, "height": 700})
    await opened(page, created["url"])
    await expect(page.get_by_role("heading", level=1)).to_have_text("Usage of partner")
    await expect(page.get_by_role("region", name="Usage by slug in 31 days")).to_contain_text(SLUGS[2])
    assert await page.locator("header, nav, a").count() == 0
    await assert_accessible(page)
    await assert_fits(page, 320)
    name, text = await saved(page, page.get_by_role("button", name="Download"))
    assert name.startswith("statement-")
    assert "partner" in text
    async with portal(port, created["url"]) as portal_url:
        framing = await context.new_page()
        await framing.goto(portal_url)
        heading = framing.frame_locator("iframe").get_by_role("heading", level=1)
        await expect(heading).to_have_text("Usage of partner")
    async with portal(own_port(), created["url"]) as stranger:  # not of the link's origins
        other = await context.new_page()
        await other.goto(stranger)
        (framed,) = other.frames[1:]
        await eventually(lambda: framed.url, "the frame has an address")  # Playwright may learn it after the page
        assert framed.url == "chrome-error://chromewebdata/"
        await eventually(
            lambda: [one for one in faults.texts if "frame-ancestors" in one], "the refusal is on the console"
        )
    faults.expect("another host", "frame-ancestors")


async def test_a_link_that_is_over_says_so(page: Page, scene: Scene) -> None:
    operator = scene.stage.operator
    key = await operator.call("POST", "/v1/api_keys", {"type": "WORKSPACE_MANAGE_ALL"})
    async with scene.stage.session.post(
        f"{scene.stage.product.control}/v1/gateway/groups/{scene.groups['partner']}/usage_links",
        json={},
        headers={"authorization": f"Bearer {key['api_key']}"},
    ) as answer:
        url = (await answer.json())["url"]
    await opened(page, url)
    await expect(page.get_by_role("heading", level=1)).to_have_text("Usage of partner")
    await operator.call("DELETE", f"/v1/api_keys/{key['prefix']}")
    answered = await page.goto(url)
    assert answered is not None
    assert answered.status == 404
    assert "Usage of partner" not in await page.evaluate("() => document.body.innerText")


async def test_a_customer_sees_costs_spend_limits_and_its_balance(page: Page, scene: Scene) -> None:
    operator = scene.stage.operator
    price = {"slug": SLUGS[1], "valid_from": "2020-01-01", "currency": "EUR"}
    rates = {"input_per_million": "2", "output_per_million": "8"}
    await operator.call("PUT", "/v1/gateway/prices", {**price, **rates})
    group = await operator.group("payer", [{"slug": SLUGS[1]}])
    limits = [{"unit": "MONTH", "amount": "3.00", "currency": "EUR"}]
    await operator.call("PATCH", f"/v1/gateway/groups/{group}", {"spend_limits": limits})
    credit = {"amount": "20.00", "currency": "EUR", "reference": "first"}
    await operator.call("POST", f"/v1/gateway/groups/{group}/balance/credits", credit)
    key = await operator.key(group)

    async def is_answered() -> bool:
        return await scene.call(key, SLUGS[1]) == 200

    await eventually(is_answered, "a balance is counted before calls draw from it", every_s=0.2)
    await scene.stage.events_of("payer", 1)
    await signed_in(page, key, "/console/usage")
    await expect(page.get_by_role("region", name="Usage by slug in 31 days")).to_contain_text("EUR")
    await expect(page.get_by_role("table", name="Spend limits")).to_contain_text("of 3.00 EUR")
    await expect(page.get_by_role("table", name="Prepaid balance")).to_contain_text("20.00 EUR")
    await expect(page.get_by_text("Cost today")).to_be_visible()
    await assert_accessible(page)
    await assert_fits(page)


REFUSED = "Refused and failed calls"


async def test_a_customer_finds_out_why_a_call_was_refused(page: Page, context: BrowserContext, scene: Scene) -> None:
    await signed_in(page, scene.keys["night-shift"], "/console/usage")
    refused = page.get_by_role("table", name=REFUSED).get_by_role("row").filter(has_text="RATE_LIMITED").first
    await expect(refused).to_contain_text("429")
    await expect(refused).to_contain_text("3 requests per minute")
    await expect(refused).to_contain_text(SLUGS[0])
    request_id = await refused.locator("code").last.text_content() or ""
    await page.get_by_label("Request id").fill(request_id)
    await page.get_by_role("button", name="Show", exact=True).click()
    await expect(page.get_by_role("table", name=REFUSED).locator("tbody tr")).to_have_count(1)
    await assert_accessible(page)
    await assert_fits(page)
    above = await searched(context, scene.keys["support"], request_id)
    await expect(above.get_by_role("table", name=REFUSED)).to_contain_text("of a group below")
    assert "night-shift" not in await above.evaluate("() => document.body.innerText")
    stranger = await searched(context, scene.keys["partner"], request_id)
    await expect(stranger.get_by_text("No call with this request id is listed")).to_be_visible()


async def searched(context: BrowserContext, key: str, request_id: str) -> Page:
    """The usage page of this key's group, which has looked for the request."""
    page = await context.new_page()
    await context.clear_cookies()
    await signed_in(page, key, "/console/usage")
    await expect(page.get_by_role("heading", name=REFUSED)).to_be_visible()
    await page.get_by_label("Request id").fill(request_id)
    await page.get_by_role("button", name="Show", exact=True).click()
    return page


async def saved(page: Page, button: Locator) -> tuple[str, str]:
    """The name and the text of the file that a button saves."""
    async with page.expect_download() as download:
        await button.click()
    file = await download.value
    return file.suggested_filename, Path(await file.path()).read_text()


async def test_a_customer_downloads_its_statement_and_figures(page: Page, scene: Scene) -> None:
    key = await scene.stage.operator.key(await scene.stage.operator.group("stated", models(SLUGS[2])))

    async def is_known() -> bool:
        return await scene.call(key, SLUGS[2]) == 200

    await scene.stage.until(is_known, "the proxy knows the key")
    for _ in range(4):
        assert await scene.call(key, SLUGS[2]) == 200
    await scene.stage.events_of("stated", 5)
    await signed_in(page, key, "/console/usage")
    await expect(page.get_by_role("region", name="Usage by slug in 31 days")).to_contain_text(SLUGS[2])
    name, text = await saved(page, page.get_by_role("button", name="Download"))
    month = await page.get_by_label("Month").input_value()
    assert name == f"statement-{month}-draft.csv"
    lines = list(csv.DictReader(text.splitlines()))
    assert {line["entity"] for line in lines} == {"stated"}
    assert [line["calls"] for line in lines if line["slug"] == SLUGS[2]] == ["5"]
    await page.get_by_label("Format").select_option("html")
    name, text = await saved(page, page.get_by_role("button", name="Download"))
    assert name == f"statement-{month}-draft.html"
    assert text.startswith("<!doctype html>")
    assert f"Statement {month}: stated" in text
    name, text = await saved(page, page.get_by_role("button", name="Slugs"))
    (row,) = csv.DictReader(text.splitlines())
    assert (row["slug"], row["calls"]) == (SLUGS[2], "5")
    _, text = await saved(page, page.get_by_role("button", name="Days"))
    assert sum(int(one["calls"]) for one in csv.DictReader(text.splitlines())) == 5
    _, text = await saved(page, page.get_by_role("button", name="Keys"))
    assert [one["calls"] for one in csv.DictReader(text.splitlines())] == ["5"]


async def test_figures_agree_with_the_limits_once_they_are_final(page: Page, scene: Scene) -> None:
    operator = scene.stage.operator
    group = await operator.group("<b>agreeing</b>", models(SLUGS[0], ("REQUEST", "DAY", 40)))
    key = await operator.key(group)

    async def is_known() -> bool:
        return await scene.call(key, SLUGS[0]) == 200

    await scene.stage.until(is_known, "the proxy knows the key")
    await scene.call(key, SLUGS[0])
    await signed_in(page, key, "/console/usage")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Usage of <b>agreeing</b>")
    limits = page.get_by_role("table", name="Limits")
    await expect(limits).to_contain_text("2 of 40")  # at once
    await expect(page.get_by_text("Limits count the calls since then, too")).to_be_visible()
    today = page.locator(".figure").filter(has=page.get_by_text("Calls today", exact=True)).locator("dd")
    await expect(today).to_have_text("2")  # once the calls are final
    await expect(limits).to_contain_text("2 of 40")
