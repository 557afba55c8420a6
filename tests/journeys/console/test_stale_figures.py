"""Figures that are not up to date say so in the first screen: control hangs, or does not run."""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from playwright.async_api import Locator, Page, expect

from tests.journeys.conftest import Stage
from tests.journeys.console.browsing import Faults, assert_accessible, assert_fits, signed_in
from tests.journeys.console.scene import Scene
from tests.journeys.product import Product, kill

_UPDATED = re.compile(r"^Updated \d\d:\d\d:\d\d UTC$")
_WITHIN_MS = 90_000  # the page itself says it within 30 s; the machine may be busy

_FOLLOW = """async () => {
    const { keepFresh } = await import("/console/assets/live.mjs");
    const { Problem } = await import("/console/assets/api.mjs");
    const place = document.querySelector("main").appendChild(document.createElement("div"));
    const load = async () => {
        if (window.problem) throw new Problem(503, "DATABASE_UNAVAILABLE", window.problem);
        return "12 calls";
    };
    window.now = keepFresh(place, 3600, load, (text) => text).now;
}"""
"""Keeps a part of the page up to date, as pages do, with figures of the test."""
_ASK_WITH_A_DEADLINE = """async (call) => {
    const { relay } = await import("/console/assets/relay.mjs");
    const deadline = new AbortController();
    const onChunk = () => deadline.abort(new DOMException("it took too long", "TimeoutError"));
    try {
        await relay(call, { signal: deadline.signal, onHead() {}, onChunk });
    } catch (error) {
        return [error.constructor.name, error.code];
    }
}"""
"""Makes a call whose deadline, as that of `AbortSignal.timeout`, is over once the first piece of the answer is here."""


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Stop processes of the product; let those that live go on afterwards."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def control_of(product: Product) -> list[int]:
    pids = product.processes("-m control --")
    assert pids
    return pids


def notice_of(page: Page) -> Locator:
    return page.get_by_role("alert").filter(has_text="may be out of date; trying again")


async def test_figures_of_a_control_that_hangs_are_called_old(page: Page, scene: Scene) -> None:
    product = scene.stage.product
    await signed_in(page, scene.api_key, "/console/overview?period=month")
    updated = page.get_by_text(_UPDATED)
    await expect(updated).to_be_visible()
    before = await updated.inner_text()
    notice = notice_of(page)
    with stopped(product.up.pid, *control_of(product)):
        await expect(notice).to_contain_text("Tollgate has not answered for 10 s", timeout=_WITHIN_MS)
        await page.mouse.wheel(0, 2000)
        await expect(notice).to_be_in_viewport()
        await assert_accessible(page)
        await assert_fits(page)
        await expect(notice).to_contain_text("Tollgate does not answer in time", timeout=_WITHIN_MS)
        await expect(page.get_by_role("figure")).to_have_count(3)  # the last figures stay
    await expect(notice).to_have_count(0, timeout=_WITHIN_MS)
    await expect(updated).not_to_have_text(before)


async def test_figures_of_a_control_that_was_killed_are_called_old(page: Page, scene: Scene, faults: Faults) -> None:
    product = scene.stage.product
    await signed_in(page, scene.api_key, "/console/async")
    await expect(page.get_by_text(_UPDATED)).to_be_visible()
    notice = notice_of(page)
    with stopped(product.up.pid):  # it would start control again
        for pid in control_of(product):
            kill(pid)
        await expect(notice).to_contain_text("Check your connection, and that control runs", timeout=_WITHIN_MS)
        await expect(notice).to_be_in_viewport()
    await expect(notice).to_have_count(0, timeout=_WITHIN_MS)
    faults.expect("ERR_CONNECTION_REFUSED")


async def test_figures_are_called_old_while_control_answers_errors(page: Page, scene: Scene) -> None:
    await signed_in(page, scene.api_key, "/console/keys")
    await expect(page.get_by_text(_UPDATED)).to_have_count(0)  # nothing on this page is kept up to date
    await page.evaluate(_FOLLOW)
    await expect(page.get_by_text(_UPDATED)).to_be_visible()
    await page.evaluate("() => { window.problem = 'The database cannot be reached.'; window.now(); }")
    await expect(notice_of(page)).to_contain_text("The database cannot be reached. The figures are of ")
    await expect(page.get_by_text("12 calls")).to_be_visible()
    await page.evaluate("() => { window.problem = null; window.now(); }")
    await expect(notice_of(page)).to_have_count(0)


async def test_an_answer_that_stalls_in_its_body_is_told_as_late(page: Page, stage: Stage) -> None:
    """Pages try again after a `Problem`, and after nothing else. A deadline gives the browser another error here."""
    key = await stage.key_without_limits()
    await signed_in(page, stage.operator.api_key, "/console/keys")
    body = {"model": stage.slug, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    stage.upstream.gate.close()
    try:
        name, code = await page.evaluate(
            _ASK_WITH_A_DEADLINE,
            {"method": "POST", "path": "/v1/chat/completions", "bodyText": json.dumps(body), "apiKey": key},
        )
    finally:
        stage.upstream.gate.open()
    assert (name, code) == ("Problem", "TIMEOUT")
