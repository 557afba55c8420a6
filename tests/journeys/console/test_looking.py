"""Looking makes no traffic: every page of the console is open for some polls, and no figure of calls has changed.

A call of a customer at the end shows that all figures have arrived by then: proxies send them in order.
"""

import re
from collections import Counter
from dataclasses import dataclass

from playwright.async_api import Page, Request

from control.api.console.pages import PAGES
from tests.journeys.conftest import Stage
from tests.journeys.console.browsing import drawn, logged_in, opened, signed_in
from tests.journeys.console.scene import SLUGS, Scene

POLLS = 3
"""The number of times that the pages of asynchronous requests ask while all are open; few pages poll more slowly."""
_COUNTER = re.compile(r"^(tollgate_(?!redis|replica|async|trace)\w+_(?:total|count)(?:\{.*\})?) (\S+)$", re.M)


def paths_of(scene: Scene) -> list[str]:
    """Every page, and what it shows of one thing where that asks for more."""
    assert scene.asynchronous is not None
    model = scene.model_id
    request = next(iter(scene.asynchronous.submitted))
    details = [
        *(f"groups?id={scene.groups['support']}", f"keys?group_id={scene.groups['support']}"),
        *(f"endpoints?slug={SLUGS[0]}", f"models?id={model}"),
        *(f"models?id={model}&deployment={scene.asynchronous.deployment_id}", "events?follow=1"),
        *(f"async?id={model}", f"async?request={request}", f"async?request={request}&id={model}"),
        *(f"playground?slug={SLUGS[0]}", f"webhooks?id={scene.webhooks['billing']}"),
    ]
    return [f"/console/{one}" for one in (*PAGES, *details) if one != "usage"]


async def test_pages_that_are_open_change_no_figure_of_calls(page: Page, scene: Scene, stage: Stage) -> None:
    caller = Caller(stage, await stage.key_without_limits())
    await logged_in(page, scene.api_key)
    await caller.call()
    start = await _figures(scene)
    await caller.call()
    before = await _figures(scene)

    requested = Counter[str]()
    page.context.on("request", lambda request: requested.update([_what(request)]))
    for path in paths_of(scene):
        await opened(await page.context.new_page(), path)

    async def polled() -> bool:
        calls = [count for what, count in requested.items() if "/console/call" in what]
        return len(calls) >= 3 and min(calls) >= POLLS  # a queue, and a request by two paths

    await scene.stage.until(polled, f"pages polled: {requested}")
    customer = await page.context.browser.new_context(base_url=scene.stage.product.control)  # type: ignore[union-attr]
    usage = await signed_in(await customer.new_page(), scene.keys["partner"], "/console/usage")
    await usage.get_by_role("heading").first.wait_for()
    await customer.close()

    await caller.call()
    after = await _figures(scene)
    assert after - before == before - start, "nothing but the customer's call"
    assert before - after == start - before


def _what(request: Request) -> str:
    return f"{request.method} {request.url} {request.post_data or ''}"


@dataclass
class Caller:
    """A customer with a slug that nobody else calls, so that no other call is taken for its own."""

    stage: Stage
    key: str
    calls: int = 0

    async def call(self) -> None:
        """Make a call, and wait until every figure has it, and so all that ended before it."""
        self.calls += 1
        id = f"{self.stage.name}-{self.calls}"
        body = b'{"model":"%b","messages":[{"role":"user","content":"Hello"}]}' % self.stage.slug.encode()
        headers = {"authorization": f"Bearer {self.key}", "x-request-id": id}
        assert (await self.stage.post(headers, body))[0] == 200
        await self.stage.until(lambda: self._arrived(id), "the figures have the call")

    async def _arrived(self, id: str) -> bool:
        """Return whether the list of requests, the traffic and the events have the call."""
        operator = self.stage.operator
        listed = (await operator.call("GET", "/v1/gateway/requests", request_id=id))["items"]
        traffic = await operator.call("GET", "/v1/gateway/traffic", slug=self.stage.slug, series="false")
        if not listed or [one["calls"] for one in traffic["items"]] != [self.calls]:
            return False
        events = await operator.events(self.stage.name, self.stage.began, limit=1000)
        return id in [event["requestId"] for event in events]


async def _figures(scene: Scene) -> Counter[str]:
    """All figures of calls that operators and customers see."""
    operator = scene.stage.operator
    figures = Counter[str]()
    for item in (await operator.call("GET", "/v1/gateway/traffic", period="month", series="false"))["items"]:
        for name in ("calls", "errors", "refusals", "uncached_input_tokens", "cached_input_tokens", "output_tokens"):
            figures[f"traffic {item['slug']} {name}"] = item[name]
    page = await operator.call("GET", "/v1/gateway/requests", limit=1000)
    while page["items"]:
        for one in page["items"]:
            figures[f"listed {one['external_entity_id']} {one['path']} {one['status']}"] += one["weight"]
        if not (cursor := page["pagination"]["cursor"]):
            break
        page = await operator.call("GET", "/v1/gateway/requests", cursor=cursor)
    async with scene.stage.session.get(scene.stage.product.admin + "/metrics") as answer:
        figures.update({name: int(float(value)) for name, value in _COUNTER.findall(await answer.text())})
    for entity, group_id in scene.groups.items():
        for one in (await operator.call("GET", f"/v1/gateway/groups/{group_id}/usage"))["items"]:
            figures[f"usage {entity} {one['slug']} {one['type']}"] = one["current_usage"]
        if entity != "partner":
            keys = (await operator.call("GET", f"/v1/gateway/groups/{group_id}/api_keys"))["items"]
            figures.update(f"used {key['prefix']} {key['last_used_at']}" for key in keys)
    return figures


async def test_a_hidden_page_asks_nothing(page: Page, scene: Scene) -> None:
    """Each page is told that it is hidden, and a minute of its timers passes at once."""
    await logged_in(page, scene.api_key)
    await page.clock.install()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(f"{request.method} {request.url}"))
    for path in paths_of(scene):
        await drawn(page, path)
        await _hide(page, is_hidden=True)
        requested.clear()
        await page.clock.run_for(60_000)
        assert requested == [], path
        await _hide(page, is_hidden=False)


async def test_a_page_that_is_seen_again_asks_at_once(page: Page, scene: Scene) -> None:
    await logged_in(page, scene.api_key)
    await page.clock.install()
    await opened(page, "/console/async")
    await page.get_by_role("row", name="transcriber").wait_for()
    await _hide(page, is_hidden=True)
    await page.clock.run_for(60_000)
    async with page.expect_request("**/console/call"):
        await _hide(page, is_hidden=False)


async def _hide(page: Page, *, is_hidden: bool) -> None:
    script = """(isHidden) => {
        Object.defineProperty(document, "hidden", {value: isHidden, configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    await page.evaluate(script, is_hidden)
