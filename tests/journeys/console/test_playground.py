"""The playground: a call as its caller makes it, its bill, the same call as code, keys that are minted and revoked."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from typing import Any

from playwright.async_api import Locator, Page, expect

from tests.journeys.conftest import Stage
from tests.journeys.console.browsing import assert_accessible, assert_fits, opened, signed_in
from tests.journeys.console.injections import TEXTS
from tests.journeys.product import models
from tests.upstream import Usage, chat

_PLACEHOLDER = "https://gateway.example"
_TESTS = "console-test"
_HOSTILE = "\n".join(text for text in TEXTS if len(text) < 500)
# What stands in for the SDK's client in a browser: it keeps what it was asked, and streams nothing.
_RUN_TYPESCRIPT = """async (code) => {
    let asked = null;
    const nothing = {async *[Symbol.asyncIterator]() {}};
    const create = async (body) => { asked = body; return nothing; };
    class OpenAI { chat = {completions: {create}}; }
    const process = {env: {}, stdout: {write() {}}};
    await eval(`(async () => {${code.replace(/^import .*$/m, "")}})()`);
    return JSON.stringify(asked);
}"""


async def _callable(stage: Stage) -> str:
    """Create the stage's slug, and a group of its name that may call it. Return the group's id."""
    await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, stage.upstream.url))
    return await stage.operator.group(stage.name, models(stage.slug, ("REQUEST", "MINUTE", 60), ("TOKEN", "DAY", 9000)))


async def _opened(page: Page, stage: Stage, source: str = "pasted") -> None:
    """Open the playground, and choose the kind of key."""
    await signed_in(page, stage.operator.api_key, f"/console/playground?slug={stage.slug}")
    await page.get_by_label("Key", exact=True).select_option(source)


async def test_a_test_call_is_billed_to_no_customer(page: Page, stage: Stage) -> None:
    """It is what the playground offers first; its key is gone when the page is."""
    group_id = await _callable(stage)
    await signed_in(page, stage.operator.api_key, f"/console/playground?slug={stage.slug}")
    await expect(page.get_by_label("Key", exact=True)).to_have_value("test")
    await expect(page.get_by_label("Key of a group")).to_be_hidden()
    before = len(await stage.operator.events(_TESTS, stage.began, limit=1000))
    await page.get_by_role("button", name="Call", exact=True).click()
    await expect(_status(page)).to_have_text("200")
    await page.get_by_role("button", name="Call", exact=True).click()
    await expect(page.get_by_role("button", name="Call", exact=True)).to_be_enabled()
    await assert_accessible(page)

    async def billed() -> Any:
        events = await stage.operator.events(_TESTS, stage.began, limit=1000)
        return len(events) >= before + 2 and events

    events = await stage.until(billed, "both calls are billed")
    assert {event["modelSlug"] for event in events[before:]} == {stage.slug}
    assert await stage.operator.events(stage.name, stage.began) == []
    (tests,) = (await stage.operator.call("GET", "/v1/gateway/groups", external_entity_id=_TESTS))["items"]
    assert stage.slug in [model["slug"] for model in tests["models"]]
    keys = f"/v1/gateway/groups/{tests['id']}/api_keys"
    prefix = events[-1]["apiKeyPrefix"]
    assert prefix in [key["prefix"] for key in (await stage.operator.call("GET", keys))["items"]]
    assert (await stage.operator.call("GET", f"/v1/gateway/groups/{group_id}/api_keys"))["items"] == []
    await page.goto("/console/overview")

    async def revoked() -> bool:
        return prefix not in [key["prefix"] for key in (await stage.operator.call("GET", keys))["items"]]

    await stage.until(revoked, "the key of the page is revoked")


async def test_a_call_shows_its_stream_limits_and_billing_event(page: Page, stage: Stage) -> None:
    group_id = await _callable(stage)
    stage.upstream.default = chat(("Streamed ", "text."), Usage(30, 11, 7))
    await _opened(page, stage)
    await page.get_by_text("Create a key for a group").click()
    await page.get_by_label("Group", exact=True).fill(stage.name)
    await page.get_by_role("button", name="Create a key").click()
    await expect(page.get_by_text("Created tg_")).to_be_visible()
    minted = (await stage.operator.call("GET", f"/v1/gateway/groups/{group_id}/api_keys"))["items"]
    assert [key["name"] for key in minted] == ["playground"]
    await stage.until(lambda: _called(page), "the proxy knows the key")
    await expect(page.get_by_label("Text of the answer")).to_have_text("Streamed text.")
    await expect(page.get_by_text("Tightest limit of requests:")).to_be_visible()
    await expect(page.get_by_role("table", name="Limits of this call now")).to_contain_text("requests per minute")
    (event,) = await stage.events_of(stage.name, 1)
    card = page.locator("section.card", has=page.get_by_role("heading", name="Billing event"))
    await expect(card).to_contain_text(event["idempotencyKey"])
    await expect(card).to_contain_text("30, of which cached 7")
    await assert_accessible(page)
    await assert_fits(page)

    await page.get_by_role("button", name="Revoke this key").click()
    await page.get_by_role("button", name="Revoke", exact=True).click()
    await expect(page.get_by_text(f"Revoked {minted[0]['prefix']}")).to_be_visible()
    assert (await stage.operator.call("GET", f"/v1/gateway/groups/{group_id}/api_keys"))["items"] == []
    assert await page.get_by_label("Key of a group").input_value() == ""


async def _called(page: Page) -> bool:
    """Call, and return whether it succeeds: just after the key and the slug were made, the proxy may not know them."""
    await page.get_by_role("button", name="Call", exact=True).click()
    await expect(page.get_by_role("button", name="Call", exact=True)).to_be_enabled()
    return await _status(page).text_content() == "200"


async def test_a_pasted_key_is_kept_nowhere_and_a_call_can_be_stopped(page: Page, stage: Stage) -> None:
    await _callable(stage)
    key = await stage.operator.key((await _group(stage))["id"])
    stage.upstream.default = chat(("First", " never"), role_first=False)
    stage.upstream.gate.close()
    await _opened(page, stage)
    await page.get_by_label("Key of a group").fill(key)
    await stage.until(lambda: _reached(stage, page), "the call reaches the upstream")
    await page.get_by_text("First", exact=True).wait_for()
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    await expect(page.get_by_label("Text of the answer")).to_have_text("First")
    await expect(page.get_by_text("Stopped by you.")).to_be_visible()
    stage.upstream.gate.open()
    (event,) = await stage.events_of(stage.name, 1)
    assert event["tokens"]["outputTokens"] > 0
    browser_state = await page.evaluate(
        "() => JSON.stringify([localStorage, sessionStorage, location.href, history.state])"
    )
    secret = key.split(".")[1]
    assert secret not in browser_state
    assert secret not in await page.evaluate("() => document.body.innerText")
    assert secret not in await page.content()


async def test_a_registered_key_is_in_no_url(page: Page, stage: Stage) -> None:
    """No part of it is public, so the call's event is found without the key."""
    group_id = await _callable(stage)
    key = f"of-my-own-{stage.name}-0123456789-0123456789"
    await stage.operator.call("POST", f"/v1/gateway/groups/{group_id}/api_keys/register", {"key": key})
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    await _opened(page, stage)
    await page.get_by_label("Key of a group").fill(key)
    await stage.until(lambda: _called(page), "the proxy knows the key")
    (event,) = await stage.events_of(stage.name, 1)
    card = page.locator("section.card", has=page.get_by_role("heading", name="Billing event"))
    await expect(card).to_contain_text(event["idempotencyKey"])
    assert any("/v1/gateway/events" in url for url in urls)
    assert not [url for url in urls if key in url]


async def _reached(stage: Stage, page: Page) -> bool:
    call = page.get_by_role("button", name="Call", exact=True)
    if not stage.upstream.received and await call.is_enabled():
        await call.click()
    return bool(stage.upstream.received)


async def _group(stage: Stage) -> Any:
    return (await stage.operator.call("GET", "/v1/gateway/groups", external_entity_id=stage.name))["items"][0]


async def test_the_call_as_code_sends_the_same_body_whatever_the_prompt(page: Page, stage: Stage) -> None:
    await _callable(stage)
    key = await stage.operator.key((await _group(stage))["id"])
    await stage.until(lambda: _answers(stage, key), "the proxy knows the key")
    await _opened(page, stage)
    await page.get_by_label("Prompt", exact=True).fill(_HOSTILE)
    # A browser gives lines of a text area one kind of end.
    prompt = await page.get_by_label("Prompt", exact=True).input_value()
    expected = {
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    environment = {**os.environ, "TOLLGATE_API_KEY": key}
    curl, python, typescript = [await _code(page, stage, title) for title in ("curl", "Python", "TypeScript")]
    bash = shutil.which("bash") or "bash"
    for words in ([bash, "-n", "-c", curl], [bash, "-c", curl], [sys.executable, "-c", python]):
        stage.upstream.received.clear()
        result = await asyncio.to_thread(
            subprocess.run, words, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert result.returncode == 0, result.stderr
        if "-n" not in words:
            assert "Hello" in result.stdout
            (received,) = stage.upstream.received
            assert received.json | {"model": ""} == expected | {"model": ""}
    assert key not in curl + python + typescript
    await page.goto("about:blank")
    body = json.loads(await page.evaluate(_RUN_TYPESCRIPT, typescript))
    assert body == expected | {"model": stage.slug}


async def _answers(stage: Stage, key: str) -> bool:
    body = json.dumps({"model": stage.slug, "messages": []}).encode()
    status, _ = await stage.post({"authorization": f"Bearer {key}", "content-type": "application/json"}, body)
    return status == 200


async def _code(page: Page, stage: Stage, title: str) -> str:
    text = await page.get_by_label(f"The call as {title}").text_content() or ""
    return text.replace(_PLACEHOLDER, stage.product.proxy)


async def test_numbers_of_a_json_body_arrive_as_they_are_written(page: Page, stage: Stage) -> None:
    await _callable(stage)
    key = await stage.operator.key((await _group(stage))["id"])
    await stage.until(lambda: _answers(stage, key), "the proxy knows the key")
    await _opened(page, stage)
    await page.get_by_label("Key of a group").fill(key)
    await page.get_by_role("button", name="JSON body").click()
    body = f'{{"model": "{stage.slug}", "messages": [], "seed": 9007199254740993}}'
    await page.get_by_role("textbox", name="JSON body").fill(body)
    await page.get_by_role("button", name="Call", exact=True).click()
    await expect(page.get_by_label("Text of the answer")).to_have_text("Hello there!")
    assert stage.upstream.received[-1].json["seed"] == 9007199254740993


async def test_an_invoke_key_calls_a_model_directly_and_sees_no_more(page: Page, stage: Stage) -> None:
    model = await stage.operator.model(stage.name, stage.upstream.url)
    created = await stage.operator.call("POST", "/v1/api_keys", {"type": "WORKSPACE_INVOKE", "name": "invoke"})
    await signed_in(page, created["api_key"], f"/console/playground?model={model}")
    await expect(page.get_by_role("navigation").get_by_role("link")).to_have_text(["Playground"])
    await stage.until(lambda: _called(page), "the proxy knows the model")
    assert stage.upstream.received[-1].path == "/predict"
    await opened(page, "/console/async")
    await expect(page.get_by_text("Async needs a key with management scope")).to_be_visible()


def _status(page: Page) -> Locator:
    return page.locator("dt", has_text="Status").locator("xpath=following-sibling::dd")
