"""Groups in the console: the tree, limits as they fill, and changes that are explained before they are saved."""

import json
from typing import Any

from playwright.async_api import Page, expect

from policy.limits.kinds import USAGE_TYPES, LimitType, Unit
from tests.journeys.conftest import Stage
from tests.journeys.console.browsing import assert_accessible, assert_fits, signed_in, until_dialog_is_gone
from tests.journeys.product import models

HOSTILE = '<img src=x onerror="fail()">\u202e'


async def test_cascading_conflict_is_explained_before_a_child_is_created(page: Page, stage: Stage) -> None:
    top = await stage.operator.group(
        stage.name, models(stage.slug, ("REQUEST", "MINUTE", 60)), limit_enforcement="CASCADING"
    )
    await signed_in(page, stage.operator.api_key, f"/console/groups?new=1&parent={top}")

    await page.get_by_label("External id").fill(f"{stage.name}{HOSTILE}")
    await page.get_by_label("Add a slug").fill(stage.slug)
    await page.get_by_role("button", name="Add").click()
    await page.get_by_label("Requests", exact=True).fill("61")
    await page.get_by_role("button", name="Review changes").click()
    await expect(page.get_by_role("alert")).to_contain_text(f"61 is above the 60 of {stage.name}")
    await expect(page.get_by_role("button", name="Create the group")).to_have_count(0)

    await page.get_by_role("button", name="Back to the form").click()
    await page.get_by_label("Requests", exact=True).fill("50")
    await page.get_by_role("button", name="Review changes").click()
    await expect(page.get_by_text(f"Still bound by the 60 of {stage.name}.")).to_be_visible()
    await assert_accessible(page)
    await page.get_by_role("button", name="Create the group").click()
    await page.wait_for_url("**/console/groups?id=*")
    await expect(page.get_by_role("table", name=f"Limits of {stage.slug}")).to_contain_text("0 of 50")
    group = await _group(stage, f"{stage.name}{HOSTILE}")
    assert group["models"] == models(stage.slug, ("REQUEST", "MINUTE", 50))
    assert group["hierarchy"] == {"limit_enforcement": "CASCADING", "parent_group_id": top}


async def test_limits_of_every_kind_are_set_in_the_form(page: Page, stage: Stage) -> None:
    group_id = await stage.operator.group(stage.name, models(stage.slug))
    await signed_in(page, stage.operator.api_key, f"/console/groups?id={group_id}&edit=1")
    limits = [(kind_type, Unit.MINUTE, 100 + place) for place, kind_type in enumerate(LimitType)]
    usages = [(unit, kind_type) for unit in Unit if not unit.is_rolling for kind_type in USAGE_TYPES]
    limits += [(kind_type, unit, place) for place, (unit, kind_type) in enumerate(usages)]  # the first one is 0
    for kind_type, unit, threshold in limits:
        window = "" if unit.is_rolling else f" a {unit.lower()}"
        await page.get_by_label(f"{kind_type.noun.capitalize()}{window}", exact=True).fill(str(threshold))
    await page.get_by_role("button", name="Review changes").click()
    for kind_type, unit, _ in limits:
        window = "" if kind_type.is_concurrent else f" a {unit.lower()}"
        name = f"{stage.slug} {kind_type.noun}{window}"
        await expect(page.get_by_role("rowheader", name=name, exact=True)).to_be_visible()
    await page.get_by_role("button", name="Save").click()
    await page.wait_for_url(f"**/console/groups?id={group_id}")
    await expect(page.get_by_role("meter", name=f"output tokens a month of {stage.slug}")).to_be_visible()
    assert (await _group(stage, stage.name))["models"] == models(stage.slug, *limits)


async def test_a_form_does_not_overwrite_what_somebody_else_changed_since(page: Page, stage: Stage) -> None:
    group_id = await stage.operator.group(stage.name, models(stage.slug))
    await signed_in(page, stage.operator.api_key, f"/console/groups?id={group_id}&edit=1")
    await page.get_by_label("Alerts at percents (optional)").fill("80")
    await stage.operator.call("PATCH", f"/v1/gateway/groups/{group_id}", {"alert_percents": [10]})
    await page.get_by_role("button", name="Review changes").click()
    await expect(page.get_by_text("somebody else has changed this since you opened it")).to_be_visible()
    await expect(page.get_by_role("button", name="Save")).to_have_count(0)
    assert (await _group(stage, stage.name))["alert_percents"] == [10]
    await page.reload()
    await page.get_by_label("Alerts at percents (optional)").fill("80")
    await page.get_by_role("button", name="Review changes").click()
    await page.get_by_role("button", name="Save").click()
    await page.wait_for_url(f"**/console/groups?id={group_id}")
    assert (await _group(stage, stage.name))["alert_percents"] == [80]


async def test_percents_of_alerts_are_set_in_the_form(page: Page, stage: Stage) -> None:
    group_id = await stage.operator.group(stage.name, models(stage.slug))
    await signed_in(page, stage.operator.api_key, f"/console/groups?id={group_id}&edit=1")
    await page.get_by_label("Alerts at percents (optional)").fill("80, 50")
    await page.get_by_role("button", name="Review changes").click()
    await expect(page.get_by_role("row").filter(has_text="alerts at percents")).to_contain_text("50, 80")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_text("at 50, 80 % of its limits")).to_be_visible()
    assert (await _group(stage, stage.name))["alert_percents"] == [50, 80]


async def test_spend_limits_are_set_in_the_form_and_their_spend_is_shown(page: Page, stage: Stage) -> None:
    daily = {"unit": "DAY", "amount": "100.00", "currency": "EUR", "enforcement": "SOFT"}
    group_id = await stage.operator.group(stage.name, models(stage.slug))
    await stage.operator.call("PATCH", f"/v1/gateway/groups/{group_id}", {"spend_limits": [daily]})
    await signed_in(page, stage.operator.api_key, f"/console/groups?id={group_id}&edit=1")
    await expect(page.get_by_label("Spend limit a day (optional)")).to_have_value("100.00 EUR")
    await page.get_by_label("Spend limit a month (optional)").fill("2000")
    await page.get_by_role("button", name="Review changes").click()
    await expect(page.get_by_role("alert")).to_contain_text("an amount and a currency")
    await page.get_by_label("Spend limit a month (optional)").fill("2000 eur hard")
    await page.get_by_role("button", name="Review changes").click()
    await expect(page.get_by_role("row").filter(has_text="spend a month")).to_contain_text("2000.00 EUR HARD")
    await assert_accessible(page)
    await page.get_by_role("button", name="Save").click()
    await page.wait_for_url(f"**/console/groups?id={group_id}")
    await expect(page.get_by_text("100.00 EUR a day, 2000.00 EUR HARD a month")).to_be_visible()
    spend = page.get_by_role("table", name="Spend limits")
    await expect(spend.get_by_role("row").filter(has_text="spend a day")).to_contain_text("0.00 of 100.00 EUR")
    await expect(spend.get_by_role("row").filter(has_text="spend a month")).to_contain_text("what could exceed it")
    await assert_accessible(page)
    await assert_fits(page)
    monthly = daily | {"unit": "MONTH", "amount": "2000.00", "enforcement": "HARD"}
    assert (await _group(stage, stage.name))["spend_limits"] == [daily, monthly]


async def test_credit_is_entered_in_the_form_and_forfeited_with_its_group(page: Page, stage: Stage) -> None:
    group_id = await stage.operator.group(stage.name, models(stage.slug))
    path = f"/v1/gateway/groups/{group_id}"
    below = await stage.operator.group(f"{stage.name}-below", models(stage.slug), parent_group_id=group_id)
    # With a HARD limit, draws are counted before there is a balance.
    daily = {"unit": "DAY", "amount": "100.00", "currency": "EUR", "enforcement": "HARD"}
    await stage.operator.call("PATCH", path, {"spend_limits": [daily]})

    async def is_counted() -> bool:
        return (await stage.operator.ask("GET", f"{path}/spend"))[0] == 200

    await stage.until(is_counted, "the tree is counted")
    await signed_in(page, stage.operator.api_key, f"/console/groups?id={group_id}")
    await expect(page.get_by_text("No prepaid balance.")).to_be_visible()
    await page.get_by_role("button", name="Add a credit").click()
    await expect(page.get_by_label("Currency")).to_have_value("EUR")
    await page.get_by_label("Amount").fill("a lot")
    await page.get_by_label("Reference").fill("INV-1")
    await page.get_by_label("Note (optional)").fill(HOSTILE)
    await page.get_by_role("button", name="Enter the credit").click()
    await expect(page.get_by_role("alert")).to_contain_text("amount")
    await assert_accessible(page)
    await page.get_by_label("Amount").fill("100")
    await page.get_by_role("button", name="Enter the credit").click()
    await until_dialog_is_gone(page)
    balance = page.get_by_role("table", name="Prepaid balance")
    await expect(balance.get_by_role("row").filter(has_text="EUR")).to_contain_text("100.00")
    entry = page.get_by_role("table", name="Entries of the balance").get_by_role("row").filter(has_text="INV-1")
    await expect(entry).to_contain_text("100.00 EUR")
    await assert_accessible(page)
    await assert_fits(page)
    assert (await stage.operator.call("GET", f"{path}/balance"))["available"] == "100.00"

    await page.goto(f"{stage.product.control}/console/groups?id={below}")
    await expect(page.get_by_text(f"Calls draw from the balance of {stage.name}")).to_be_visible()
    await page.goto(f"{stage.product.control}/console/groups?id={group_id}")
    await page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("textbox").fill(stage.name)
    await dialog.get_by_role("button", name="Delete").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("100.00 EUR is left")
    await dialog.get_by_label("Credit that is left in balances is forfeited").check()
    await dialog.get_by_role("button", name="Delete").click()
    await page.wait_for_url("**/console/groups")
    assert await _groups(stage, stage.name) == []


async def test_review_says_who_inherits_a_changed_limit(page: Page, stage: Stage) -> None:
    day = ("TOKEN", "DAY", 1000)
    top = await stage.operator.group(stage.name, models(stage.slug, ("REQUEST", "MINUTE", 60), day))
    await stage.operator.group(f"{stage.name}-heir", models(stage.slug), parent_group_id=top)
    await stage.operator.group(f"{stage.name}-own", models(stage.slug, ("REQUEST", "MINUTE", 90)), parent_group_id=top)
    await signed_in(page, stage.operator.api_key, f"/console/groups?id={top}&edit=1")

    await page.get_by_label("Name (optional)").fill("A name")
    await page.get_by_label("Requests", exact=True).fill("30")
    await page.get_by_role("button", name="Review changes").click()
    row = page.get_by_role("row", name="requests a minute")
    await expect(row).to_contain_text(f"leave it out, each counted alone: {stage.name}-heir: 60 → 30.")
    await expect(row).to_contain_text(f"keep it: {stage.name}-own.")
    await page.get_by_role("button", name="Save").click()
    await page.wait_for_url(f"**/console/groups?id={top}")
    group = await _group(stage, stage.name)
    assert (group["metadata"]["name"], group["models"]) == (
        "A name",
        models(stage.slug, ("REQUEST", "MINUTE", 30), day),
    )


async def test_limits_of_a_group_fill_as_it_calls_and_name_who_called(page: Page, stage: Stage) -> None:
    await stage.key_without_limits()
    limits = models(stage.slug, ("REQUEST", "DAY", 2))
    top = await stage.operator.group(f"{stage.name}-top", limits, limit_enforcement="CASCADING")
    below = await stage.operator.group(f"{stage.name}-below", models(stage.slug), parent_group_id=top)
    key = await stage.operator.key(below)
    await signed_in(page, stage.operator.api_key, f"/console/groups?id={below}")
    bar = page.get_by_role("meter", name=f"requests a day of {stage.slug}")
    await expect(bar).to_have_attribute("aria-valuenow", "0")

    for _ in range(2):
        await stage.ask(key)
    await expect(page.get_by_text("full, refuses now")).to_be_visible()
    await expect(bar).to_have_attribute("aria-valuenow", "2")
    await stage.events_of(f"{stage.name}-below", 2)
    await page.get_by_role("button", name=f"Show the top users of the requests a day of {stage.slug}").click()
    sitter = page.get_by_role("dialog").get_by_role("row", name=f"{stage.name}-below")
    await expect(sitter).to_contain_text("100 %")
    await page.get_by_role("button", name="Close").click()
    await assert_accessible(page)
    await assert_fits(page)


async def test_tree_is_walked_and_a_branch_deleted(page: Page, stage: Stage) -> None:
    top = await stage.operator.group(f"{stage.name}{HOSTILE}", models(stage.slug))
    below = await stage.operator.group(f"{stage.name}-below", models(stage.slug), parent_group_id=top)
    key = await stage.operator.key(below)
    await signed_in(page, stage.operator.api_key, "/console/groups")

    await page.get_by_role("button", name="Collapse all").click()
    await expect(page.get_by_role("link", name=f"{stage.name}-below")).to_be_hidden()
    await page.get_by_role("button", name=f"1 below {stage.name}{HOSTILE}").click()
    await expect(page.get_by_role("link", name=f"{stage.name}-below")).to_be_visible()
    await assert_accessible(page)
    await assert_fits(page)
    await page.get_by_role("combobox", name="Find anything").fill(f"{stage.name}{HOSTILE}")
    await page.get_by_role("listbox", name="Matches").get_by_role("option", name=f"{stage.name}{HOSTILE}").click()
    await page.wait_for_url(f"**/console/groups?id={top}")

    await page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("1 group below it")
    await dialog.get_by_role("textbox").fill("delete")
    await dialog.get_by_role("button", name="Delete").click()
    await page.wait_for_url("**/console/groups")
    assert await _groups(stage, f"{stage.name}-below") == []
    assert (await stage.post({"authorization": f"Bearer {key}"}, json.dumps({"model": stage.slug}).encode()))[0] != 200


async def test_usage_is_handed_out_as_a_link_and_as_html_that_embeds_it(page: Page, stage: Stage) -> None:
    group = await stage.operator.group(stage.name, models(stage.slug))
    await signed_in(page, stage.operator.api_key, f"/console/groups?id={group}")

    await page.get_by_role("button", name="Share usage page").click()
    await page.get_by_label("Valid for").select_option("1 day")
    await page.get_by_label("Origins that may embed it").fill("https://portal.example\nhttp://[")
    await page.get_by_role("button", name="Create the link").click()
    await expect(page.get_by_role("alert")).to_be_visible()
    await page.get_by_label("Origins that may embed it").fill("https://portal.example")
    await page.get_by_role("button", name="Create the link").click()
    link = await page.get_by_label("The link").inner_text()
    await expect(page.get_by_label("HTML that embeds it")).to_contain_text(f'<iframe src="{link}"')
    await assert_accessible(page)
    await page.get_by_role("button", name="I have stored it").click()
    await until_dialog_is_gone(page)
    assert link not in await page.content()
    async with stage.session.get(link) as answer:
        assert answer.status == 200
        assert "frame-ancestors https://portal.example" in answer.headers["content-security-policy"]


async def _groups(stage: Stage, entity: str) -> list[dict[str, Any]]:
    answer = await stage.operator.call("GET", "/v1/gateway/groups", external_entity_id=entity)
    return list(answer["items"])


async def _group(stage: Stage, entity: str) -> dict[str, Any]:
    (group,) = await _groups(stage, entity)
    return group
