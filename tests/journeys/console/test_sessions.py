"""Logins as a browser keeps them: the cookie's flags, the ends of a session, and what other origins cannot do."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from playwright.async_api import Browser, BrowserContext, Page

from tests.journeys.conftest import Stage
from tests.journeys.console.browsing import (
    COOKIE,
    Faults,
    asked,
    assert_accessible,
    assert_fits,
    call,
    logged_in,
    signed_in,
)
from tests.ports import own_port
from tests.waiting import eventually


@asynccontextmanager
async def stranger() -> AsyncIterator[str]:
    """The URL of another local site: `localhost`, where the console is at 127.0.0.1. Its page is empty."""

    async def page(_request: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><html lang=en><title>Elsewhere</title>", content_type="text/html")

    app = web.Application()
    port = own_port()
    app.router.add_get("/", page)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://localhost:{port}/"
    finally:
        await runner.cleanup()


async def test_shell_may_be_framed_by_nobody_and_runs_only_its_own_scripts(page: Page) -> None:
    answer = await page.goto("/console/overview")
    assert answer is not None
    headers = await answer.all_headers()
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
    assert (headers["cache-control"], headers["cross-origin-opener-policy"]) == ("no-store", "same-origin")


ATTEMPTS = (
    "const one = document.createElement('script'); one.text = 'window.ran = true'; document.head.append(one)",
    "document.body.innerHTML = '<img src=x>'",
    "document.head.append(Object.assign(document.createElement('script'), {src: 'data:text/javascript,ran=true'}))",
)


async def test_a_script_that_got_into_the_page_does_not_run(page: Page, faults: Faults) -> None:
    await page.goto("/console/overview")
    for attempt in ATTEMPTS:
        await page.evaluate(f"() => {{ try {{ {attempt} }} catch {{}} }}")
        await page.evaluate("() => new Promise((resolve) => setTimeout(resolve, 0))")
        assert await page.evaluate("() => window.ran") is None, attempt
        faults.expect("violates the policy")
        faults.texts.clear()  # Chromium's own words for the same


async def test_a_login_sets_a_cookie_that_no_script_and_no_other_site_gets(
    page: Page, context: BrowserContext, stage: Stage
) -> None:
    await signed_in(page, stage.operator.api_key)
    (cookie,) = await context.cookies()
    assert (cookie["name"], cookie["path"], cookie["httpOnly"]) == (COOKIE, "/", True)
    assert (cookie["sameSite"], cookie["secure"]) == ("Strict", False)  # served without TLS here
    assert 0 < cookie["expires"] - await page.evaluate("() => Date.now() / 1000") <= 43_200
    assert await page.evaluate("() => document.cookie") == ""
    status, session = await call(page, "GET", "/console/session")
    assert (status, session["kind"], session["may_manage"]) == (200, "WORKSPACE_MANAGE_ALL", True)
    assert stage.operator.api_key not in str(session)
    assert (await call(page, "GET", "/v1/gateway/groups"))[0] == 200


async def test_a_wrong_key_logs_nobody_in(page: Page, context: BrowserContext) -> None:
    await page.goto("/console/overview")
    await page.wait_for_selector("input")
    await assert_accessible(page)
    assert (await call(page, "POST", "/console/session", {"api_key": "wrong"}))[0] == 403
    assert await context.cookies() == []
    assert (await call(page, "GET", "/console/session"))[0] == 401
    await assert_fits(page)


async def test_a_logout_ends_the_session_for_a_kept_cookie_too(
    page: Page, context: BrowserContext, stage: Stage
) -> None:
    await signed_in(page, stage.operator.api_key)
    cookie = (await context.cookies())[0]
    assert (await call(page, "DELETE", "/console/session"))[0] == 204
    assert await context.cookies() == []
    await context.add_cookies([{"name": COOKIE, "value": cookie["value"], "url": page.url}])
    assert await asked(page, "/console/session") == 401
    assert await asked(page, "/v1/gateway/groups") == 401


async def test_a_revoked_key_ends_its_sessions(page: Page, stage: Stage) -> None:
    created = await stage.operator.call("POST", "/v1/api_keys", {"type": "WORKSPACE_MANAGE_ALL"})
    await logged_in(page, created["api_key"])
    assert await asked(page, "/console/session") == 200
    await stage.operator.call("DELETE", f"/v1/api_keys/{created['prefix']}")
    assert await asked(page, "/console/session") == 401
    assert await asked(page, "/v1/gateway/groups") == 401


async def test_contexts_of_one_browser_are_apart(page: Page, browser: Browser, stage: Stage) -> None:
    await logged_in(page, stage.operator.api_key)
    async with await browser.new_context(base_url=stage.product.control) as other:
        page = await other.new_page()
        await page.goto("/console/overview")
        assert (await call(page, "GET", "/console/session"))[0] == 401


async def test_another_origin_can_neither_read_write_nor_frame(
    page: Page, context: BrowserContext, faults: Faults, stage: Stage
) -> None:
    await logged_in(page, stage.operator.api_key)
    groups = await stage.operator.call("GET", "/v1/gateway/groups")
    async with stranger() as url:
        other = await context.new_page()
        await other.goto(url)
        write = """async (url) => {
            const body = JSON.stringify({metadata: {external_entity_id: "forged"}, models: []});
            const tries = ["application/json", "text/plain"].flatMap((type) => ["cors", "no-cors"].map((mode) =>
                fetch(url, {method: "POST", body, mode, credentials: "include", headers: {"Content-Type": type}})
                    .then((answer) => answer.type, () => "refused")));
            return Promise.all(tries);
        }"""
        assert set(await other.evaluate(write, f"{stage.product.control}/v1/gateway/groups")) <= {"refused", "opaque"}
        read = "(url) => fetch(url, {credentials: 'include'}).then(() => 'read', () => 'refused')"
        assert await other.evaluate(read, f"{stage.product.control}/console/session") == "refused"
        frame = """(url) => new Promise((resolve) => {
            const frame = Object.assign(document.createElement("iframe"), {src: url, onload: () => resolve(null)});
            document.body.append(frame);
        })"""
        await other.evaluate(frame, f"{stage.product.control}/console/overview")
        (framed,) = other.frames[1:]
        await eventually(lambda: framed.url, "the frame has an address")  # Playwright may learn it after the page
        assert framed.url == "chrome-error://chromewebdata/"
    faults.expect("another host", "console: ")
    assert await stage.operator.call("GET", "/v1/gateway/groups") == groups


async def test_the_same_write_of_a_page_at_another_port_of_this_host_is_refused(
    page: Page, context: BrowserContext, faults: Faults, stage: Stage
) -> None:
    """A port does not make another site: the browser sends even a strict cookie along, so the server must refuse."""
    await logged_in(page, stage.operator.api_key)
    async with stranger() as url:
        other = await context.new_page()
        await other.goto(url.replace("localhost", "127.0.0.1"))
        form = """(url) => {
            const form = Object.assign(document.createElement("form"), {method: "POST", action: url});
            document.body.append(form);
            form.submit();
        }"""
        async with other.expect_navigation() as navigation:
            await other.evaluate(form, f"{stage.product.control}/v1/gateway/groups")
        answer = await navigation.value
        assert answer is not None
        headers = await answer.request.all_headers()
    assert f"{COOKIE}=" in headers["cookie"]
    assert (answer.status, (await answer.json())["code"]) == (403, "FOREIGN_ORIGIN")
    faults.expect("another host")
