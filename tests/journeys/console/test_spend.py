"""The Spend page: its figures are those of the report and of the events, to the last digit.

The calls are made through the proxy, in a workspace of their own: two currencies, a slug without a price, groups below.
"""

import asyncio
import csv
import io
import re
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest_asyncio
from playwright.async_api import Locator, Page, Route, expect

from commands.billing.reports import csv_rows
from policy.statements.csv_text import csv_text
from tests.journeys.conftest import stage_of
from tests.journeys.console.browsing import (
    assert_accessible,
    assert_accessible_in_the_dark,
    assert_fits,
    call,
    opened,
    signed_in,
)
from tests.journeys.console.scene import Place, Scene
from tests.journeys.product import OperatorClient
from tests.ports import own_port
from tests.upstream import ScriptedUpstream, Usage, chat

CHAT = "spender/chat"
EMBED = "spender/embed"
FREE = "spender/free"
HOSTILE = "<img src=x onerror=window.ran=1>"
TEAM = "=team<b>"
SMALL = [f"small-{number:02d}" for number in range(10)]
PATH = "/v1/gateway/usage_report"
PRICES: dict[str, dict[str, str]] = {
    CHAT: {"currency": "EUR", "input_per_million": "3.000000000001", "output_per_million": "15"},
    EMBED: {"currency": "USD", "input_per_million": "0.13", "output_per_million": "0.07"},
}
CALLS = [
    *((HOSTILE, CHAT, 1000 + number) for number in range(3)),
    *((TEAM, CHAT, 70_001), (TEAM, EMBED, 900), (HOSTILE, EMBED, 77), (TEAM, FREE, 5), (HOSTILE, FREE, 6)),
    *((entity, CHAT, 10 + number) for number, entity in enumerate(SMALL)),
]


@dataclass
class Ledger:
    """A workspace with calls that cost something, and the events of these calls."""

    operator: OperatorClient
    groups: dict[str, str]
    keys: dict[str, str]
    events: list[Any]

    def costs(self, events: Iterable[Any]) -> dict[str, Decimal]:
        """The sums of the events' costs, one by one."""
        totals: dict[str, Decimal] = {}
        for one in events:
            if (cost := one["cost"]) is not None:
                totals[cost["currency"]] = totals.get(cost["currency"], Decimal(0)) + Decimal(cost["amount"])
        return totals

    def of(self, *entities: str) -> list[Any]:
        return [one for one in self.events if one["externalEntityId"] in entities]

    async def report(self, grouping: str, **more: str) -> Any:
        start = self.events[0]["timestamp"][:10] + "T00:00:00Z"
        return await self.operator.call("GET", PATH, start=start, group_by=grouping, limit=1000, **more)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ledger(place: Place) -> AsyncIterator[Ledger]:
    record = place.product.command("workspace", "create", "spender", "--prefix", "spender")
    async with aiohttp.ClientSession() as session, ScriptedUpstream(port=own_port()) as upstream:
        operator = OperatorClient(session, place.product, record["api_key"])
        stage = stage_of(place.workspace, session, upstream, "spend")
        for slug in (CHAT, EMBED, FREE):
            await operator.endpoint(slug, await operator.model(slug.split("/")[1], upstream.url))
            if slug in PRICES:
                price = {"slug": slug, "valid_from": "2020-01-01", **PRICES[slug]}
                await operator.call("PUT", "/v1/gateway/prices", price)
        slugs = [{"slug": slug} for slug in (CHAT, EMBED, FREE)]
        groups = {HOSTILE: await operator.group(HOSTILE, slugs)}
        groups[TEAM] = await operator.group(TEAM, slugs, parent_group_id=groups[HOSTILE])
        groups |= {entity: await operator.group(entity, slugs) for entity in SMALL}
        keys = {entity: await operator.key(id) for entity, id in groups.items()}

        async def is_answered(entity: str, slug: str) -> bool:
            body = b'{"model":"%b","messages":[{"role":"user","content":"Is it?"}]}' % slug.encode()
            headers = {"authorization": f"Bearer {keys[entity]}", "content-type": "application/json"}
            status, _ = await stage.post(headers, body)
            return status == 200

        for entity, slug, tokens in CALLS:
            upstream.plan(chat(("Yes.",), Usage(tokens, 3, 0), role_first=False))
            await stage.until(partial(is_answered, entity, slug), "the proxy knows the key and the slug")

        async def events() -> Any:
            query = {"start_time": stage.began, "include": "details", "limit": 1000}
            items = (await operator.call("GET", "/v1/gateway/events", **query))["items"]
            return items if len(items) == len(CALLS) else None

        listed = await stage.until(events, "all events are final")
        yield Ledger(operator, groups, keys, list(listed))


def rows(page: Page, caption: str) -> Locator:
    return page.get_by_role("table", name=caption, exact=True).locator("tbody tr")


async def table_of(page: Page, caption: str) -> dict[str, dict[str, str]]:
    """The cells of each row by the heads of their columns; rows by their first cell."""
    await expect(rows(page, caption).first).to_be_visible()
    script = """(table) => [...table.tBodies[0].rows].map((row) =>
        Object.fromEntries([...row.cells].map((cell) => [cell.dataset.head, cell.textContent])))"""
    cells = await page.get_by_role("table", name=caption, exact=True).evaluate(script)
    return {next(iter(row.values())): row for row in cells}


async def figure(page: Page, name: str) -> str:
    """The value of a tile of the range."""
    tile = page.locator("dl.figures-row > .figure").filter(
        has=page.locator("dt", has_text=re.compile(f"^{re.escape(name)}$"))
    )
    return await tile.last.locator("dd .value").inner_text()


async def test_figures_are_those_of_the_report_and_of_the_events(page: Page, ledger: Ledger) -> None:
    await signed_in(page, ledger.operator.api_key, "/console/spend?range=today")
    customers = await table_of(page, "Cost by customer")
    totals = (await ledger.report("day"))["totals"]
    costs = ledger.costs(ledger.events)
    assert {currency: Decimal(amount) for currency, amount in totals["cost"].items()} == costs
    for currency in ("EUR", "USD"):
        assert await figure(page, f"Cost in {currency}") == totals["cost"][currency]
    assert await figure(page, "Calls") == str(len(CALLS))
    assert len(customers) == 10
    root = customers[HOSTILE]
    for currency in ("EUR", "USD"):
        both = ledger.costs(ledger.of(HOSTILE, TEAM))[currency]
        assert Decimal(root[f"Cost ({currency})"]) == both
        assert Decimal(root[f"Own ({currency})"]) == ledger.costs(ledger.of(HOSTILE))[currency]
    assert (root["Calls"], root["Own calls"], root["Without a price"]) == ("8", "5", "2")
    slugs = await table_of(page, "Cost by slug")
    assert Decimal(slugs[CHAT]["Cost (EUR)"]) == costs["EUR"]
    assert (slugs[CHAT]["Cost (USD)"], slugs[FREE]["Cost (EUR)"]) == ("–", "–")
    keys = await table_of(page, "Cost by key")
    prefix = ledger.keys[TEAM].split(".")[0]
    assert Decimal(keys[prefix]["Cost (EUR)"]) == ledger.costs(ledger.of(TEAM))["EUR"]
    day = ledger.events[0]["timestamp"][:10]
    summary = page.locator("figure", has_text="Cost by day in EUR").get_by_text("Table")
    await summary.click()
    await expect(page.get_by_role("table", name="Values of Cost by day in EUR")).to_contain_text(totals["cost"]["EUR"])
    assert day in await page.get_by_label("From (UTC)").input_value()
    assert await page.evaluate("() => window.ran ?? null") is None
    await assert_accessible(page)
    await assert_accessible_in_the_dark(page)
    await assert_fits(page)
    await assert_accessible(page)


async def test_months_stand_side_by_side(page: Page, ledger: Ledger) -> None:
    await signed_in(page, ledger.operator.api_key, "/console/spend")
    await expect(rows(page, "This month and the last one")).to_have_count(3)
    months = list((await table_of(page, "This month and the last one")).values())
    costs = (await ledger.report("day"))["totals"]["cost"]
    day = datetime.fromisoformat(ledger.events[0]["timestamp"])
    before = f"{day.replace(day=1) - timedelta(days=1):%B}"
    names = [f"{day:%B} to date", f"{before}, the same days", f"{before}, the whole month"]
    assert [month["Month"].startswith(name) for month, name in zip(months, names, strict=True)] == [True] * 3
    assert [month["Cost (EUR)"] for month in months] == [costs["EUR"], "–", "–"]
    assert [month["Cost (USD)"] for month in months] == [costs["USD"], "–", "–"]
    assert [month["Calls"] for month in months] == [str(len(CALLS)), "0", "0"]
    assert [month["Without a price"] for month in months] == ["2", "0", "0"]


async def test_unpriced_calls_are_told_with_the_way_to_prices(page: Page, ledger: Ledger) -> None:
    await signed_in(page, ledger.operator.api_key, "/console/spend?range=today")
    notice = page.locator(".notice.warn")
    await expect(notice).to_contain_text("2 calls have no price")
    await expect(notice.get_by_role("listitem")).to_have_text(f"{FREE}: 2")
    await expect(notice.get_by_role("link", name="Set prices")).to_have_attribute("href", "/console/prices")
    await notice.get_by_role("link", name=FREE).click()
    await expect(page.get_by_label("Slug")).to_have_value(FREE)
    await expect(page.get_by_label("Valid from")).to_have_value(ledger.events[0]["timestamp"][:10])


async def test_all_customers_are_sorted_by_any_sum_and_the_address_keeps_it(page: Page, ledger: Ledger) -> None:
    await signed_in(page, ledger.operator.api_key, "/console/spend?range=today")
    await page.get_by_role("link", name="All customers").click()
    await page.wait_for_url("**/console/spend?*by=entity*")
    await expect(rows(page, "Cost by customer")).to_have_count(12)
    expected = (await ledger.report("entity", rollup="true", order_by="cost", currency="USD"))["items"]
    await page.get_by_role("button", name="Cost (USD)").click()
    await expect(page.get_by_role("columnheader", name="Cost (USD)")).to_have_attribute("aria-sort", "descending")
    await expect(rows(page, "Cost by customer").locator("th")).to_have_text(
        [one["external_entity_id"] for one in expected]
    )
    head = page.get_by_role("columnheader", name="Input tokens")
    await head.get_by_role("button").click()
    await expect(head).to_have_attribute("aria-sort", "descending")
    await head.get_by_role("button").click()
    await expect(head).to_have_attribute("aria-sort", "ascending")
    expected = (await ledger.report("entity", rollup="true", order_by="input_tokens", order="asc"))["items"]
    names = [one["external_entity_id"] for one in expected]
    await expect(rows(page, "Cost by customer").locator("th")).to_have_text(names)
    await opened(page, page.url)  # as who gets the link
    await expect(rows(page, "Cost by customer").locator("th")).to_have_text(names)
    await assert_accessible(page)


async def test_the_answer_to_an_order_that_was_left_changes_nothing(page: Page, ledger: Ledger) -> None:
    released = asyncio.Event()

    async def late(route: Route) -> None:
        await released.wait()
        await route.continue_()

    await signed_in(page, ledger.operator.api_key, "/console/spend?range=today&by=entity")
    await expect(rows(page, "Cost by customer")).to_have_count(12)
    await page.route(f"**{PATH}?*order_by=input_tokens*", late)
    await page.get_by_role("button", name="Input tokens").click()
    await page.get_by_role("button", name="Output tokens").click()
    await expect(page.get_by_role("columnheader", name="Output tokens")).to_have_attribute("aria-sort", "descending")
    async with page.expect_response(re.compile("order_by=input_tokens")) as answer:
        released.set()
    await (await answer.value).finished()
    assert (await call(page, "GET", "/console/session"))[0] == 200  # the page has seen the late answer before this one
    expected = (await ledger.report("entity", rollup="true", order_by="output_tokens"))["items"]
    names = [one["external_entity_id"] for one in expected]
    await expect(rows(page, "Cost by customer").locator("th")).to_have_text(names)


async def test_a_file_has_all_pages_of_the_report(page: Page, ledger: Ledger) -> None:
    async def shortened(route: Route) -> None:
        await route.continue_(url=route.request.url.replace("limit=1000", "limit=5"))

    await page.route(f"**{PATH}?*", shortened)
    await signed_in(page, ledger.operator.api_key, "/console/spend?range=today")
    await table_of(page, "Cost by customer")
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Download CSV by entity").click()
    text = Path(await (await download.value).path()).read_text()
    lines = list(csv.DictReader(io.StringIO(text)))
    items = (await ledger.report("entity", rollup="true"))["items"]
    expected = {
        (item["external_entity_id"], currency): (Decimal(amount), item["own"]["cost"].get(currency, ""))
        for item in items
        for currency, amount in item["cost"].items()
    }
    by_name = {(line["external_entity_id"].lstrip("'"), line["currency"]): line for line in lines}
    assert {name: (Decimal(line["cost"]), line["own_cost"]) for name, line in by_name.items()} == expected
    assert sum(int(line["calls"]) for line in lines) == sum(item["calls"] for item in items)
    assert by_name[TEAM, "EUR"]["external_entity_id"] == f"'{TEAM}"  # no formula of a spreadsheet
    ordered = await ledger.report("entity", rollup="true", order_by="cost", currency="EUR")
    assert text == csv_text(csv_rows("entity", ordered["items"]))  # as the command writes it


async def test_a_customer_leads_to_its_group_its_requests_and_its_spend(page: Page, ledger: Ledger) -> None:
    await signed_in(page, ledger.operator.api_key, "/console/spend?range=today")
    row = rows(page, "Cost by customer").filter(has_text=HOSTILE)
    await expect(row.get_by_role("link", name=HOSTILE, exact=True)).to_have_attribute(
        "href", f"/console/groups?id={ledger.groups[HOSTILE]}"
    )
    href = await row.get_by_role("link", name=f"Requests of {HOSTILE}").get_attribute("href")
    query = parse_qs(urlsplit(href or "").query)
    assert query["external_entity_id"] == [HOSTILE]
    await row.get_by_role("link", name=f"Spend of {HOSTILE}").click()
    await page.wait_for_url("**/console/spend?*entity=*")
    await expect(page.get_by_text("with all groups below it.")).to_be_visible()
    slugs = await table_of(page, "Cost by slug")
    costs = ledger.costs(ledger.of(HOSTILE, TEAM))
    assert Decimal(slugs[CHAT]["Cost (EUR)"]) == costs["EUR"]
    assert Decimal(await figure(page, "Cost in USD")) == costs["USD"]


async def test_days_of_ones_own_and_times_without_calls(page: Page, ledger: Ledger) -> None:
    await signed_in(page, ledger.operator.api_key, "/console/spend?range=last-month")
    await expect(page.get_by_text("No calls in this time")).to_contain_text("once it is final")
    day = ledger.events[0]["timestamp"][:10]
    await page.get_by_label("From (UTC)").fill(day)
    await page.get_by_label("To, inclusive").fill(day)
    await page.get_by_role("button", name="Show", exact=True).click()
    await page.wait_for_url(f"**/console/spend?from={day}&to={day}")
    assert await figure(page, "Calls") == str(len(CALLS))
    await opened(page, "/console/spend?from=2020-01-01&to=2026-01-01")
    await expect(page.get_by_role("alert").first).to_be_visible()
    await opened(page, "/console/spend?from=rubbish&to=2026-01-01")
    await expect(page.get_by_role("alert").first).to_contain_text("start")


async def test_another_workspace_sees_nothing_and_other_keys_are_told_why(
    page: Page, ledger: Ledger, scene: Scene
) -> None:
    foreign = (await scene.stage.operator.call("POST", "/v1/api_keys", {"type": "WORKSPACE_MANAGE_ALL"}))["api_key"]
    await signed_in(page, foreign, f"/console/spend?range=today&slug={CHAT}")
    await expect(page.get_by_text("No calls in this time")).to_be_visible()
    await signed_in(page, scene.workspace_keys["WORKSPACE_INVOKE"], "/console/spend")
    await expect(page.get_by_text("Spend needs a key with management scope")).to_be_visible()
    await signed_in(page, ledger.keys[TEAM], "/console/spend")
    await expect(page.get_by_role("heading", level=1)).to_have_text(f"Usage of {TEAM}")
