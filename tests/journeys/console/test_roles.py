"""The console with a role: what it may not do is pale, stays where it is, and says which roles may.

See docs/reference/console.md#roles.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Page, Response, expect

from tests.journeys.console.browsing import (
    assert_accessible,
    assert_accessible_in_the_dark,
    assert_fits,
    call,
    drawn,
    logged_in,
    opened,
    signed_in,
)
from tests.journeys.console.scene import SLUGS, Scene

SHOWS = re.compile(
    r"Show|Load more|Older|Follow|Copy|Search|Open|Expand|Collapse|Export|Download|Cancel|Refresh"
    r"|Zoom in: |Cut the axis|\d+ below |Add$|Remove \S+/\S+$"
)
"""Names of controls that change nothing; the last ones change what a form holds."""
FREE_CONTROLS = """() => [...document.querySelectorAll("main button:not(.sort)")]
    .filter((one) => one.checkVisibility() && !one.disabled && one.getAttribute("aria-disabled") !== "true")
    .map((one) => one.getAttribute("aria-label") ?? one.innerText.trim())"""
DENIED = "[aria-disabled='true']"


async def key_with(scene: Scene, role: str) -> str:
    body = {"type": "WORKSPACE_MANAGE_ALL", "role": role, "name": f"journey of a {role}"}
    key: str = (await scene.stage.operator.call("POST", "/v1/api_keys", body))["api_key"]
    return key


async def addresses(scene: Scene) -> list[str]:
    """The pages, and details of what the workspace has."""
    assert scene.job is not None
    job = await scene.job.read()
    group = scene.groups["support"]
    webhook = next(iter(scene.webhooks.values()))
    deployments = await scene.stage.operator.call("GET", f"/v1/models/{scene.model_id}/deployments")
    return [
        *("overview", "requests", "spend", "groups", "endpoints", "prices", "secrets", "keys", "events", "webhooks"),
        *("models", "training", "audit"),
        *(f"groups?id={group}", f"groups?id={group}&edit=1", "groups?new=1", "prices?new=1", f"prices?slug={SLUGS[0]}"),
        *(f"endpoints?slug={SLUGS[0]}", "endpoints?new=1", f"webhooks?id={webhook}", f"models?id={scene.model_id}"),
        f"models?id={scene.model_id}&deployment={deployments['items'][0]['id']}",
        f"training?project={job['training_project_id']}",
        f"training?project={job['training_project_id']}&job={job['id']}",
    ]


@asynccontextmanager
async def nothing_is_refused(page: Page) -> AsyncIterator[None]:
    """Fails if the API refuses a call of the page for the role: a control should have said so before."""
    refusals: list[str] = []

    def note(answer: Response) -> None:
        if answer.status == 403:
            refusals.append(f"{answer.request.method} {answer.url} on {page.url}")

    page.on("response", note)
    yield
    page.remove_listener("response", note)
    assert refusals == []


async def test_all_that_a_viewer_may_press_only_shows_something(page: Page, scene: Scene) -> None:
    """A control that changes something says what it needs: `needs` in `h`, `form` or `actionButton`."""
    await logged_in(page, await key_with(scene, "viewer"))
    free: dict[str, str] = {}
    async with nothing_is_refused(page):
        for address in await addresses(scene):
            await drawn(page, f"/console/{address}")
            for name in await page.evaluate(FREE_CONTROLS):
                free.setdefault(name, address)
    assert {name: address for name, address in free.items() if not SHOWS.match(name)} == {}


async def test_viewer_sees_what_he_may_not_do_and_who_may(page: Page, scene: Scene) -> None:
    await signed_in(page, await key_with(scene, "viewer"), f"/console/groups?id={scene.groups['support']}")
    await expect(page.get_by_text("Your role is viewer.")).to_be_visible()
    edit = page.get_by_role("link", name="Edit name, slugs and limits")
    await expect(edit).to_have_attribute("aria-disabled", "true")
    why = "To change endpoints, groups, limits and secrets takes the role operator or admin. Yours is viewer."
    await expect(edit).to_have_accessible_description(why)
    at = page.url
    await edit.focus()
    await expect(edit).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status").get_by_text(why)).to_be_visible()
    await edit.click(force=True)
    assert page.url == at
    await page.get_by_text("Your role is viewer.").click()
    await expect(page.get_by_role("listitem").filter(has_text=why)).to_be_visible()
    await assert_accessible(page)
    await assert_fits(page)
    await assert_accessible_in_the_dark(page)


async def test_form_that_was_opened_by_its_address_is_not_sent(page: Page, scene: Scene) -> None:
    await signed_in(page, await key_with(scene, "viewer"), "/console/prices?new=1")
    async with nothing_is_refused(page):
        await page.get_by_label("Slug").fill(SLUGS[1])
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("status").get_by_text("billing, operator or admin")).to_be_visible()


async def test_page_that_a_role_may_not_use_says_so(page: Page, scene: Scene) -> None:
    await signed_in(page, await key_with(scene, "billing"), "/console/playground")
    why = "Playground cannot be used with your role. To call models takes the role operator or admin. Yours is billing."
    await expect(page.get_by_role("main")).to_contain_text(why)
    await expect(page.get_by_role("navigation").get_by_role("link", name="Async")).to_be_visible()
    await assert_accessible(page)


async def test_billing_sets_a_price_and_books_a_credit(page: Page, scene: Scene) -> None:
    await signed_in(page, await key_with(scene, "billing"), "/console/prices?new=1")
    await page.get_by_label("Slug").fill("acme/of-billing")
    await page.get_by_label("Currency").fill("EUR")
    await page.locator("[name=input_per_million]").fill("1")
    await page.locator("[name=output_per_million]").fill("2")
    await page.get_by_role("button", name="Save the price").click()
    await expect(page.get_by_role("button", name="Change the price from").first).to_be_enabled()
    await opened(page, f"/console/groups?id={scene.groups['research']}")
    await expect(page.get_by_role("button", name="Add a credit")).not_to_have_attribute("aria-disabled", "true")
    await expect(page.get_by_role("button", name="Share usage page")).to_have_attribute("aria-disabled", "true")
    trail = (await call(page, "GET", "/v1/audit_events?limit=1"))[1]["items"][0]
    assert (trail["action"], trail["resource"].split("/")[0]) == ("price.create", "prices")


async def test_admin_sees_no_note_and_nothing_pale(page: Page, scene: Scene) -> None:
    await logged_in(page, scene.api_key)
    for address in ("groups", f"groups?id={scene.groups['support']}", "prices", "keys", "webhooks", "secrets"):
        await drawn(page, f"/console/{address}")
        await expect(page.locator("#role-note")).to_have_count(0)
        await expect(page.locator(DENIED)).to_have_count(0)


async def test_operator_makes_a_key_for_a_viewer_and_none_above_himself(page: Page, scene: Scene) -> None:
    await signed_in(page, await key_with(scene, "operator"), "/console/keys")
    await page.get_by_text("New key of the workspace").click()
    kind = page.get_by_label("Permission")
    await kind.select_option("Bill: prices and credits")
    await page.get_by_role("button", name="Create a key").click()
    await expect(page.get_by_role("alert")).to_contain_text("This key may do what you may not (credits)")
    await kind.select_option("Read only")
    await page.get_by_label("Name (optional)").fill("dashboard")
    await page.get_by_role("button", name="Create a key").click()
    await expect(page.get_by_role("region", name="The new key")).to_be_visible()
    await page.get_by_role("button", name="I have stored it").click()
    row = page.get_by_role("table", name="Keys").get_by_role("row").filter(has_text="dashboard")
    await expect(row).to_contain_text("Act as viewer")
