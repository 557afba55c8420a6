"""The tasks of operators, each begun at the overview: they succeed, in the number of clicks that is stated here.

Typing and choosing in a list are no clicks. Fewer clicks than stated fail, too: then the number here is lowered.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from playwright.async_api import Locator, Page, expect

from tests.journeys.conftest import Stage
from tests.journeys.console.browsing import assert_accessible, signed_in
from tests.journeys.product import OperatorClient, models

REQUESTS = "/v1/gateway/requests"


@dataclass
class Operator:
    """A person with a mouse, who counts."""

    page: Page
    clicks: int = 0

    async def presses(self, control: Locator) -> None:
        await control.click()
        self.clicks += 1

    async def opens(self, page_name: str) -> None:
        """Go to a page by the navigation."""
        await self.presses(self.page.get_by_role("navigation").get_by_role("link", name=page_name, exact=True))

    async def follows(self, link: str) -> None:
        await self.presses(self.page.get_by_role("main").get_by_role("link", name=link, exact=True).first)

    async def pushes(self, button: str) -> None:
        await self.presses(self.page.get_by_role("button", name=button, exact=True))


async def _at_the_overview(page: Page, stage: Stage) -> Operator:
    await signed_in(page, stage.operator.api_key)
    return Operator(page)


async def test_a_group_is_created_in_five_clicks(page: Page, stage: Stage) -> None:
    await stage.key_without_limits()
    operator = await _at_the_overview(page, stage)
    await operator.opens("Groups")
    await operator.follows("New group")
    await page.get_by_label("External id").fill(f"{stage.name}-new")
    await page.get_by_label("Add a slug").fill(stage.slug)
    await operator.pushes("Add")
    await page.get_by_label("Requests", exact=True).fill("60")
    await operator.pushes("Review changes")
    await operator.pushes("Create the group")
    await page.wait_for_url("**/console/groups?id=*")
    assert operator.clicks == 5
    assert await _limits(stage.operator, f"{stage.name}-new") == [("REQUEST", "MINUTE", 60)]


async def test_a_limit_is_raised_against_the_cascade_in_eleven_clicks(page: Page, stage: Stage) -> None:
    """The refusal leads to the group above that is in the way, and from there back."""
    limits = models(stage.slug, ("REQUEST", "MINUTE", 60))
    top = await stage.operator.group(f"{stage.name}-top", limits, limit_enforcement="CASCADING")
    below = await stage.operator.group(f"{stage.name}-below", limits, parent_group_id=top)
    operator = await _at_the_overview(page, stage)
    await operator.opens("Groups")
    await operator.follows(f"{stage.name}-below")
    await _raise_to_100(operator, stage)
    await expect(page.get_by_role("alert")).to_contain_text(f"above the 60 of {stage.name}-top")
    await operator.presses(page.get_by_role("alert").get_by_role("link", name=f"Edit {stage.name}-top"))
    await page.wait_for_url(f"**/console/groups?id={top}*")
    await _raise_to_100(operator, stage)
    await operator.pushes("Save")
    await page.wait_for_url(f"**/console/groups?id={top}")
    await operator.follows(f"{stage.name}-below")
    await page.wait_for_url(f"**/console/groups?id={below}")
    await _raise_to_100(operator, stage)
    await operator.pushes("Save")
    await page.wait_for_url(f"**/console/groups?id={below}")
    assert operator.clicks == 11
    assert await _limits(stage.operator, f"{stage.name}-below") == [("REQUEST", "MINUTE", 100)]


async def _raise_to_100(operator: Operator, stage: Stage) -> None:
    page = operator.page
    if "edit=1" not in page.url:
        await operator.follows("Edit name, slugs and limits")
    await page.get_by_label("Requests", exact=True).fill("100")
    await operator.pushes("Review changes")


async def test_a_slug_is_led_to_another_model_in_four_clicks(page: Page, stage: Stage) -> None:
    await stage.key_without_limits()
    other = await stage.operator.model(f"{stage.name}-other", stage.upstream.url)
    operator = await _at_the_overview(page, stage)
    await operator.opens("Endpoints")
    await operator.follows(stage.slug)
    await page.get_by_label("Model", exact=True).select_option(f"{stage.name}-other")
    await operator.pushes("Test the target")
    await expect(page.get_by_text("Status 200")).to_be_visible()
    await operator.pushes("Save the target")

    async def is_led_to_the_other() -> bool:
        endpoints = (await stage.operator.call("GET", "/v1/gateway/endpoints", limit=1000))["items"]
        (target,) = next(one["targets"] for one in endpoints if one["slug"] == stage.slug)
        return bool(target["model_id"] == other)

    await stage.until(is_led_to_the_other, "the slug leads to the other model")
    assert operator.clicks == 4


async def test_a_refusal_of_now_is_explained_in_two_clicks(page: Page, stage: Stage) -> None:
    await stage.key_without_limits()
    limits = models(stage.slug, ("REQUEST", "MINUTE", 1), ("TOKEN", "DAY", 1_000_000))
    key = await stage.operator.key(await stage.operator.group(f"{stage.name}-full", limits))
    await _refused(stage, key, "call-of-now")
    operator = await _at_the_overview(page, stage)
    await operator.opens("Groups")
    await operator.follows(f"{stage.name}-full")
    limit = page.get_by_role("table", name=f"Limits of {stage.slug}").get_by_role("row", name="requests a minute")
    await expect(limit).to_contain_text("full, refuses now")
    assert operator.clicks == 2


async def test_a_refusal_of_an_hour_ago_is_explained_in_two_clicks(page: Page, stage: Stage) -> None:
    await stage.key_without_limits()
    limits = models(stage.slug, ("REQUEST", "MINUTE", 1))
    key = await stage.operator.key(await stage.operator.group(f"{stage.name}-past", limits))
    await _refused(stage, key, f"{stage.name}-call")
    operator = await _at_the_overview(page, stage)
    await operator.opens("Requests")
    await page.get_by_label("Request id").fill(f"{stage.name}-call")
    await operator.pushes("Show")
    row = page.get_by_role("region", name="Requests").locator("tbody tr")
    await expect(row).to_have_count(1)
    await expect(row).to_contain_text("RATE_LIMITED: 1 request a minute")
    assert operator.clicks == 2


async def test_a_customers_portal_is_handed_out_in_four_clicks(page: Page, stage: Stage) -> None:
    await stage.operator.group(stage.name, models(stage.slug))
    operator = await _at_the_overview(page, stage)
    await operator.opens("Groups")
    await operator.follows(stage.name)
    await operator.pushes("Share usage page")
    await operator.pushes("Create the link")
    link = await page.get_by_label("The link").inner_text()
    assert operator.clicks == 4
    await page.goto(link)
    await expect(page.get_by_role("heading", name=stage.name)).to_be_visible()
    await assert_accessible(page)


async def test_the_spend_of_a_customer_this_month_is_seen_in_two_clicks(page: Page, stage: Stage) -> None:
    await stage.ask(await stage.key_without_limits())
    price = {"currency": "EUR", "input_per_million": "10", "output_per_million": "20"}
    await stage.operator.call("PUT", "/v1/gateway/prices", {"slug": stage.slug, "valid_from": "2026-01-01", **price})
    (event,) = await stage.events_of(stage.name, 1)
    operator = await _at_the_overview(page, stage)
    await operator.opens("Spend")
    await page.get_by_label("Customer (external id)").fill(stage.name)
    await operator.pushes("Show")
    await page.wait_for_url(f"**/console/spend?*{stage.name}*")
    tokens = event["tokens"]
    cost = Decimal(tokens["inputTokens"] * 10 + tokens["outputTokens"] * 20) / 1_000_000
    row = page.get_by_role("table", name="Cost by customer").get_by_role("row", name=stage.name)
    await expect(row).to_contain_text(str(cost))
    assert operator.clicks == 2


async def _limits(operator: OperatorClient, entity: str) -> list[tuple[str, str, int]]:
    (group,) = (await operator.call("GET", "/v1/gateway/groups", external_entity_id=entity))["items"]
    (entry,) = group["models"]
    return [(one["type"], one["unit"], one["threshold"]) for one in (*entry["rate_limits"], *entry["usage_limits"])]


async def _refused(stage: Stage, key: str, request_id: str) -> None:
    """Use up the limit of one call, make a call of this id, and wait until it is listed as refused."""
    headers = {"authorization": f"Bearer {key}"}
    body = b'{"model":"%b","messages":[{"role":"user","content":"Hello"}]}' % stage.slug.encode()

    async def refuses() -> bool:
        return (await stage.post(headers, body))[0] == 429

    async def listed() -> Any:
        return (await stage.operator.call("GET", REQUESTS, request_id=request_id, status="429"))["items"]

    await stage.until(refuses, "the limit refuses")
    assert (await stage.post(headers | {"x-request-id": request_id}, body))[0] == 429
    await stage.until(listed, "the refusal is listed")
