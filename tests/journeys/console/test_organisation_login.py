"""People log in with their organisation: at a provider of another site, into the console as their role, and out again.

The provider is at `localhost`, which is another site for a browser than the console's 127.0.0.1.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, expect

from tests.journeys.conftest import Workspace, started
from tests.journeys.console.browsing import (
    COOKIE,
    Faults,
    asked,
    assert_accessible,
    assert_accessible_in_the_dark,
    assert_fits,
    call,
    watched_context,
)
from tests.journeys.product import Product
from tests.login_provider import CLIENT_ID, CLIENT_SECRET, KEYCLOAK, LoginProvider, running_provider
from tests.waiting import eventually

LINK = "Log in with your organisation"
ROLES = (
    "tollgate-operator=acme:operator,tollgate-viewer=acme:viewer,tollgate-admin=acme:admin,"
    "tollgate-other=<b>other</b>:billing"
)
_STRAY_TEXTS = """() => [...document.body.childNodes]
    .filter((node) => node.nodeType === Node.TEXT_NODE && node.data.trim()).map((node) => node.data)"""
"""The texts beside the page's parts: none is meant to be there."""


@dataclass
class Entrance:
    """A product whose console people enter through a provider."""

    product: Product
    provider: LoginProvider


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def entrance(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Entrance]:
    async with running_provider(KEYCLOAK, "localhost") as provider:
        settings = {
            "TOLLGATE_OIDC_ISSUER": provider.issuer,
            "TOLLGATE_OIDC_CLIENT_ID": CLIENT_ID,
            "TOLLGATE_OIDC_CLIENT_SECRET": CLIENT_SECRET,
            "TOLLGATE_OIDC_ROLE_CLAIM": "realm_access.roles",
            "TOLLGATE_OIDC_ROLES": ROLES,
        }
        product = Product(tmp_path_factory.mktemp("organisation") / "data", workers=1, settings=settings)
        with started(product) as workspace:
            assert isinstance(workspace, Workspace)
            product.command("workspace", "create", "<b>other</b>", "--prefix", "other")
            yield Entrance(product, provider)


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(browser: Browser, entrance: Entrance) -> AsyncIterator[tuple[BrowserContext, Faults]]:
    entrance.provider.claims = {}
    entrance.provider.asks = False
    async with watched_context(browser, entrance.product.control) as (context, faults):
        yield context, faults
    here = f"another host: {entrance.provider.origin}/"
    assert [fault for fault in faults.texts if not fault.startswith(here)] == []


async def entered(page: Page, path: str = "/console/overview") -> None:
    """Log in from this page of the console, as the provider's person."""
    await page.goto(path)
    await page.get_by_role("link", name=LINK).click()


@pytest.mark.parametrize("asks", [False, True])
async def test_a_person_comes_back_from_another_site_to_the_page_that_was_asked_for(
    visitor: tuple[BrowserContext, Faults], entrance: Entrance, asks: bool
) -> None:
    context, _ = visitor
    page = await context.new_page()
    entrance.provider.asks = asks
    await entered(page, "/console/spend?range=7d")
    if asks:
        await page.get_by_role("link", name="Continue as Ada").click()
    await expect(page.get_by_role("heading", level=1, name="Spend")).to_be_visible()
    assert page.url == f"{entrance.product.control}/console/spend?range=7d"
    await expect(page.locator(".session")).to_have_text("acme ada@acme.example, operator")
    (cookie,) = await context.cookies(entrance.product.control)
    assert (cookie["name"], cookie["sameSite"], cookie["httpOnly"]) == (COOKIE, "Strict", True)
    await page.reload()
    await expect(page.locator(".session")).to_contain_text("ada@acme.example")
    assert await page.evaluate("() => document.cookie") == ""


async def test_a_person_acts_in_the_role_and_is_named_in_the_trail(
    visitor: tuple[BrowserContext, Faults], entrance: Entrance
) -> None:
    page = await visitor[0].new_page()
    await entered(page, "/console/audit")
    await expect(page.get_by_role("heading", level=1, name="Audit")).to_be_visible()
    body = {"metadata": {"external_entity_id": "of-ada"}, "models": [{"slug": "acme/chat"}]}
    assert (await call(page, "POST", "/v1/gateway/groups", body))[0] == 200
    assert (await call(page, "POST", "/v1/gateway/webhooks", {"url": "https://x.example/"}))[0] == 403
    await page.reload()
    await expect(page.get_by_text(f"ada@acme.example ({entrance.provider.issuer})").first).to_be_visible()


async def test_a_person_without_a_key_is_told_what_needs_one(
    visitor: tuple[BrowserContext, Faults], entrance: Entrance
) -> None:
    page = await visitor[0].new_page()
    entrance.provider.claims = {"realm_access": {"roles": ["tollgate-admin"]}}
    await entered(page, "/console/async")
    await expect(page.get_by_text("you logged in without one")).to_be_visible()
    assert await page.evaluate(_STRAY_TEXTS) == []
    await page.goto("/console/playground")
    await page.get_by_label("API", exact=True).select_option("predict")
    await expect(page.get_by_text("you logged in without one: paste one")).to_be_visible()
    await assert_accessible(page)


async def test_a_logout_leaves_the_console_and_the_provider(
    visitor: tuple[BrowserContext, Faults], entrance: Entrance
) -> None:
    context, _ = visitor
    page = await context.new_page()
    await entered(page)
    await expect(page.locator(".session")).to_be_visible()
    (cookie,) = await context.cookies(entrance.product.control)
    count = len(entrance.provider.logouts)
    await page.get_by_role("button", name="Log out").click()
    await eventually(lambda: len(entrance.provider.logouts) > count)  # the page may show the login before it leaves
    assert entrance.provider.logouts[count:] == [
        {"client_id": CLIENT_ID, "post_logout_redirect_uri": f"{entrance.product.control}/console"}
    ]
    await expect(page.get_by_role("link", name=LINK)).to_be_visible()
    assert await context.cookies(entrance.product.control) == []
    await context.add_cookies([{"name": COOKIE, "value": cookie["value"], "url": page.url}])
    assert await asked(page, "/console/session") == 401


async def test_who_has_several_workspaces_chooses_and_may_switch(
    visitor: tuple[BrowserContext, Faults], entrance: Entrance
) -> None:
    page = await visitor[0].new_page()
    entrance.provider.claims = {"realm_access": {"roles": ["tollgate-viewer", "tollgate-other"]}}
    await entered(page, "/console/groups")
    await expect(page.get_by_role("heading", level=1, name="Choose a workspace")).to_be_visible()
    assert await asked(page, "/v1/gateway/groups") == 401
    await assert_accessible(page)
    await assert_fits(page)
    await page.keyboard.press("Tab")
    await page.get_by_role("button", name="<b>other</b>, as billing").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1, name="Groups")).to_be_visible()
    await expect(page.locator(".session")).to_contain_text("<b>other</b> ada@acme.example, billing")
    await page.set_viewport_size({"width": 1440, "height": 900})
    await page.get_by_role("link", name="Switch workspace").click()
    await page.get_by_role("button", name="acme, as viewer").click()
    await expect(page.locator(".session")).to_contain_text("acme ada@acme.example, viewer")
    assert page.url.endswith("/console/overview")
    await page.get_by_role("link", name="Switch workspace").click()
    await expect(page.get_by_role("button", name="acme, as viewer")).to_be_visible()


async def test_the_login_page_offers_both_ways_to_everybody(visitor: tuple[BrowserContext, Faults]) -> None:
    page = await visitor[0].new_page()
    await page.goto("/console/overview")
    await expect(page.get_by_role("link", name=LINK)).to_be_focused()
    await expect(page.get_by_label("API key")).to_be_visible()
    await assert_accessible(page)
    await assert_accessible_in_the_dark(page)
    await assert_fits(page)


async def test_who_has_no_role_reads_what_is_missing_and_is_led_nowhere_else(
    visitor: tuple[BrowserContext, Faults], entrance: Entrance
) -> None:
    page = await visitor[0].new_page()
    entrance.provider.claims = {"realm_access": {"roles": ["<img src=x onerror=alert(1)>"]}}
    await entered(page)
    await expect(page.get_by_role("heading", level=1, name="No role for you yet")).to_be_visible()
    await expect(page.get_by_text("Your claim realm_access.roles has: <img src=x onerror=alert(1)>.")).to_be_visible()
    await assert_accessible(page)
    await assert_fits(page)
    await page.get_by_role("link", name="Log in again").click()
    await expect(page.get_by_role("link", name=LINK)).to_be_visible()
