"""A real browser at the console: the system's Chromium, driven by Playwright. It reaches no other host.

Each context has its own cookies, and notes in its `Faults` what no page of the console may cause.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Response,
    WebError,
    async_playwright,
    expect,
)

CHROMIUM = "/usr/bin/chromium"
MISSING = f"no {CHROMIUM} (Debian: apt-get install chromium)"
COOKIE = "tollgate_console"
WIDE = 1440
NARROW = 400
_HEIGHT = 900
expect.set_options(timeout=30_000)  # as long as Playwright waits for all else: the machine may be busy
_ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)
# Chromium logs every answer of 4xx as an error. Pages ask for what may be refused: whether somebody is logged in.
_REFUSED = re.compile(r"Failed to load resource: the server responded with a status of 4\d\d ")
_NOTE_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) =>
    console.error(`violates the policy: ${event.violatedDirective} ${event.blockedURI}`))
"""


@dataclass
class Faults:
    """The faults of a context: errors on its console, failed scripts, calls of other hosts, answers of 5xx."""

    origin: str
    texts: list[str] = field(default_factory=list)

    def expect(self, *parts: str) -> None:
        """Take out the faults that a test caused on purpose; each part must be in one."""
        for part in parts:
            meant = [fault for fault in self.texts if part in fault]
            assert meant, f"no fault with {part!r}: {self.texts}"
            self.texts = [fault for fault in self.texts if part not in fault]

    def watch(self, context: BrowserContext) -> None:
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)
        context.on("request", self._on_request)
        context.on("response", self._on_response)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not _REFUSED.match(message.text):
            self.texts.append(f"console: {message.text}")

    def _on_error(self, error: WebError) -> None:
        self.texts.append(f"script: {error.error}")

    def _on_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme != "data" and f"{parts.scheme}://{parts.netloc}" != self.origin:
            self.texts.append(f"another host: {request.url}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 500:
            self.texts.append(f"answer: {response.status} {response.url}")


@asynccontextmanager
async def running_browser() -> AsyncIterator[Browser]:
    """One Chromium, with a new profile that is deleted afterwards."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(_ARGUMENTS))
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def watched_context(
    browser: Browser, origin: str, width: int = WIDE, scheme: Literal["light", "dark"] = "light"
) -> AsyncIterator[tuple[BrowserContext, Faults]]:
    """A context at this origin, to which paths are relative."""
    context = await browser.new_context(
        base_url=origin, viewport={"width": width, "height": _HEIGHT}, color_scheme=scheme, locale="en-GB"
    )
    await context.add_init_script(_NOTE_VIOLATIONS)
    faults = Faults(origin)
    faults.watch(context)
    try:
        yield context, faults
    finally:
        await context.close()


async def call(page: Page, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Call the API by a script of the page; return the status, and JSON or text."""
    script = """async ([method, path, body]) => {
        const json = {"Content-Type": "application/json"};
        const more = body === null ? {} : {body: JSON.stringify(body), headers: json};
        const answer = await fetch(path, {method, ...more});
        const text = await answer.text();
        try { return [answer.status, JSON.parse(text)]; } catch { return [answer.status, text]; }
    }"""
    status, content = await page.evaluate(script, [method, path, body])
    return int(status), content


async def asked(page: Page, path: str) -> int:
    """The status that the browser gets with its cookies. Not by a script of the page: one that gets a 401 reloads it,
    which breaks off what runs there."""
    return (await page.request.get(path)).status


async def logged_in(page: Page, api_key: str) -> None:
    """Log the page's context in with this key, by the request of the login form: no page is opened for it."""
    path = "/console/session"
    origin = (await page.request.get(path)).url.removesuffix(path)
    answer = await page.request.post(path, data={"api_key": api_key}, headers={"Origin": origin})
    assert answer.status == 204, await answer.text()


async def signed_in(page: Page, api_key: str, path: str = "/console/overview") -> Page:
    """Log the page's context in with this key, and open a page of the console."""
    await logged_in(page, api_key)
    await opened(page, path)
    return page


async def opened(page: Page, path: str) -> None:
    """Open a page of the console, and wait until it has drawn what it asked for."""
    await page.goto(path, wait_until="load")
    await page.wait_for_function("() => document.readyState === 'complete' && document.body.innerText.trim() !== ''")


async def drawn(page: Page, path: str) -> None:
    """Open a page of the console, and wait until it has drawn all that it asks for, one request after another."""
    await opened(page, path)
    await page.wait_for_load_state("networkidle")


async def until_dialog_is_gone(page: Page) -> None:
    """Wait until the page holds no dialog: it is removed a moment after the user sees it close."""
    await expect(page.locator("dialog")).to_have_count(0)


async def assert_accessible(page: Page, besides: Sequence[str] = (), rules: Sequence[str] = ()) -> None:
    """Axe finds nothing serious or critical. `besides`: the ids of its rules that may be broken here. `rules`: the only
    ones that are looked at; all without them."""
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": list(rules)}
    if not await page.evaluate("() => 'axe' in window"):
        await page.evaluate(Axe().axe_script)
    violations = await page.evaluate("async (options) => (await axe.run(options)).violations", options)
    grave = [one for one in violations if one["impact"] in ("serious", "critical") and one["id"] not in besides]
    problems = [f"{one['id']}: {one['help']}: {[node['html'] for node in one['nodes']]}" for one in grave]
    assert not problems, "\n".join(problems)


COLOUR_RULES = ("color-contrast", "link-in-text-block")
"""Axe's rules on colours. A scheme changes nothing else: `test_console_modules.py` sees that no script knows."""


async def assert_accessible_in_the_dark(page: Page) -> None:
    """The same in the dark scheme, for what was looked at in the light one."""
    await page.emulate_media(color_scheme="dark")
    await assert_accessible(page, rules=COLOUR_RULES)
    await page.emulate_media(color_scheme="light")


async def assert_fits(page: Page, width: int = NARROW) -> None:
    """Check that nobody has to scroll sideways to see the whole page at this width."""
    await page.set_viewport_size({"width": width, "height": _HEIGHT})
    needed = await page.evaluate("() => document.documentElement.scrollWidth")
    if needed > width:
        wide = await page.evaluate(
            """(width) => [...document.querySelectorAll("body *")]
                .filter((one) => one.getBoundingClientRect().right > width + 0.5)
                .map((one) => one.outerHTML.slice(0, 200)).slice(0, 5)""",
            width,
        )
        raise AssertionError(f"{page.url} needs {needed} px for {wide}")
