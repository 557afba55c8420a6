"""No text of a user acts: wherever the API takes one, every page shows it, and nothing runs."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest_asyncio
from playwright.async_api import Dialog, Page

from control.api.console.pages import PAGES
from tests.journeys.conftest import stage_of
from tests.journeys.console.browsing import drawn, logged_in, opened, signed_in
from tests.journeys.console.injections import REQUEST_IDS, TEXTS
from tests.journeys.console.scene import Place
from tests.journeys.product import OperatorClient, models
from tests.upstream import ScriptedUpstream

# What may be in a page: what pages make themselves.
_ELEMENTS = set(
    """html head meta title link script body noscript a abbr article aside b bdi button caption code col colgroup
    datalist dd details dialog div dl dt em fieldset figcaption figure footer form h1 h2 h3 h4 header hr i img input kbd
    label legend li main meter nav ol optgroup option output p pre progress section select small span strong sub summary
    sup table tbody td textarea tfoot th thead time tr ul svg circle g line path polygon polyline rect text
    defs use desc ins del""".split()  # noqa: SIM905
)
_LOOK = """() => {
    const all = [...document.querySelectorAll("*")];
    const names = [...new Set(all.map((one) => one.localName))];
    const handlers = all.flatMap((one) => one.getAttributeNames().filter((name) => /^on|^srcdoc$|^xlink/i.test(name)));
    const scripts = [...document.scripts].map((one) => one.getAttribute("src"));
    const styles = [...document.querySelectorAll("link[rel=stylesheet]")].map((one) => one.getAttribute("href"));
    const images = [...document.images].map((one) => one.getAttribute("src"));
    const targets = [...document.querySelectorAll("[href], [src], [action]")]
        .map((one) => one.getAttribute("href") ?? one.getAttribute("src") ?? one.getAttribute("action"))
        .map((address) => new URL(address, location.href))
        .filter((url) => url.origin !== location.origin).map(String);
    const text = document.documentElement.textContent + all.map((one) => one.value ?? "").join("\\n");
    return {names, handlers, scripts, styles, images, targets, text, ran: window.ran ?? null};
}"""


@dataclass
class Hostile:
    """A workspace of its own whose every text is one of the corpus, as far as the API takes it."""

    place: Place
    operator: OperatorClient
    session: aiohttp.ClientSession
    texts: dict[str, list[str]] = field(default_factory=dict)
    """The texts that the API took, by what they name."""
    ids: dict[str, str] = field(default_factory=dict)
    key: str = ""

    async def put(
        self, what: str, method: str, path: str, make: Callable[[str], Any], texts: tuple[str, ...] = TEXTS
    ) -> list[Any]:
        """Write each text; one that the API refuses is a 400. Return the answers to the others."""
        turns = asyncio.Semaphore(8)

        async def write(text: str) -> Any:
            async with turns:
                status, answer = await self.operator.ask(method, path, make(text))
                while status == 429:
                    await asyncio.sleep(answer["retry_after"])
                    status, answer = await self.operator.ask(method, path, make(text))
            assert status in (200, 400), f"{what} {text!r}: {status} {answer}"
            if status == 200:
                self.texts.setdefault(what, []).append(text)
            return answer if status == 200 else None

        return [answer for answer in await asyncio.gather(*map(write, texts)) if answer is not None]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hostile(place: Place) -> Any:
    created = place.product.command("workspace", "create", "<img src=x onerror=window.ran=60>", "--prefix", "hostile")
    async with aiohttp.ClientSession() as session, ScriptedUpstream() as upstream:
        stage = stage_of(place.workspace, session, upstream, "hostile")
        hostile = Hostile(place, OperatorClient(session, place.product, created["api_key"]), session)
        await _fill(hostile, upstream.url, stage.until)
        yield hostile


async def _fill(hostile: Hostile, upstream: str, until: Callable[..., Awaitable[Any]]) -> None:
    operator = hostile.operator
    slug = "hostile/chat"
    model = await operator.model(TEXTS[0], upstream)
    await operator.endpoint(slug, model)
    groups = await hostile.put(
        "groups",
        "POST",
        "/v1/gateway/groups",
        lambda text: {
            "metadata": {"external_entity_id": text, "name": text},
            "models": models(slug, ("REQUEST", "DAY", 99)),
        },
    )
    hostile.ids["group"] = group = groups[3]["id"]
    path = f"/v1/models/{model}/deployments"
    deployment = (await operator.call("GET", path))["items"][0]["id"]
    hostile.ids |= {"model": model, "deployment": deployment}
    target: dict[str, Any] = {"provider": "PLATFORM", "model_id": model}
    replica = {"message": "", "timestamp": str(time.time_ns()), "level": "ERROR"}
    await asyncio.gather(
        hostile.put("keys", "POST", f"/v1/gateway/groups/{group}/api_keys", lambda text: {"name": text}),
        hostile.put(
            "keys of the workspace", "POST", "/v1/api_keys", lambda text: {"type": "WORKSPACE_INVOKE", "name": text}
        ),
        hostile.put("models", "POST", "/v1/models", lambda text: {"name": text}),
        hostile.put("deployments", "POST", path, lambda text: {"name": text}),
        hostile.put("secrets", "POST", "/v1/secrets", lambda text: {"name": text, "value": "x"}),
        hostile.put("projects", "POST", "/v1/training_projects", lambda text: {"training_project": {"name": text}}),
        hostile.put(
            "logs", "POST", f"{path}/{deployment}/logs/append", lambda text: {"logs": [replica | {"message": text}]}
        ),
        hostile.put(
            "webhooks",
            "POST",
            "/v1/gateway/webhooks",
            lambda text: {"url": "https://receiver.example/hook", "description": text},
            TEXTS[:19],
        ),
        hostile.put(
            "webhook addresses",
            "POST",
            "/v1/gateway/webhooks",
            lambda text: {"url": f"https://receiver.example/{text}"},
            TEXTS[19:20],
        ),
    )
    for number, text in enumerate(TEXTS):
        body = {"slug": f"hostile/{number}", "targets": [target | {"target_model": text}], "managed_by": text}
        await hostile.put("endpoints", "POST", "/v1/gateway/endpoints", lambda _text, body=body: body, (text,))  # type: ignore[misc]
    hostile.key = await operator.key(group)
    await until(lambda: _called(hostile, slug), "calls of hostile groups succeed")


async def _called(hostile: Hostile, slug: str) -> bool:
    """Return whether calls with hostile metadata and request ids succeed."""
    for text, id in zip(TEXTS[:8], REQUEST_IDS * 2, strict=True):
        body = {"model": slug, "messages": [{"role": "user", "content": text}], "metadata": {text: text}}
        headers = {"authorization": f"Bearer {hostile.key}", "x-request-id": id}
        url = hostile.place.product.proxy + "/v1/chat/completions"
        async with hostile.session.post(url, json=body, headers=headers) as answer:
            if answer.status != 200:
                return False
    return True


async def test_no_text_of_a_user_acts_on_any_page(page: Page, hostile: Hostile) -> None:
    dialogs: list[str] = []

    async def dismiss(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        await dialog.dismiss()

    page.on("dialog", dismiss)
    await logged_in(page, hostile.operator.api_key)
    ids = hostile.ids
    wrong = []
    text_of = {}
    for path in (
        *(name for name in PAGES if name not in ("playground", "usage")),
        *("playground?slug=%22%3E%3Cimg%20src=x%20onerror=window.ran=70%3E", f"groups?id={ids['group']}"),
        *(f"keys?group_id={ids['group']}", f"models?id={ids['model']}", f"async?id={ids['model']}"),
        f"models?id={ids['model']}&deployment={ids['deployment']}",
        "async?request=%3Cscript%3Ewindow.ran=71%3C/script%3E&id=javascript:window.ran=72",
        "events?external_entity_id=%3Cimg%20src=x%20onerror=window.ran=73%3E",
    ):
        await drawn(page, f"/console/{path}")
        page_content = await page.evaluate(_LOOK)
        text_of[path] = page_content.pop("text")
        wrong += _wrong(path, page_content)
    assert wrong == []
    assert dialogs == []
    for name in ("groups", "models", "async"):
        kind = {"async": "models"}.get(name, name)  # its page shows 20 models, one of them none of these
        missing = [text for text in hostile.texts[kind][:19] if text not in text_of[name]]
        assert missing == [], f"{name} does not show them as they are"


def _wrong(path: str, page_content: dict[str, Any]) -> list[str]:
    problems = []
    if page_content["ran"] is not None:
        problems.append(f"{path}: {page_content['ran']} ran")
    if set(page_content["names"]) - _ELEMENTS:
        problems.append(f"{path}: has {set(page_content['names']) - _ELEMENTS}")
    problems += [f"{path}: has a handler {name}" for name in page_content["handlers"]]
    problems += [f"{path}: leads to {url}" for url in page_content["targets"]]
    problems += [f"{path}: runs {src}" for src in page_content["scripts"] if src != "/console/assets/main.mjs"]
    problems += [
        f"{path}: styled by {href}" for href in page_content["styles"] if href != "/console/assets/console.css"
    ]
    problems += [f"{path}: shows {src}" for src in page_content["images"] if src != "/console/assets/icon.svg"]
    return problems


async def test_a_hostile_group_sees_its_own_name(page: Page, hostile: Hostile) -> None:
    await signed_in(page, hostile.key, "/console/usage")
    await page.get_by_role("heading", name=f"Usage of {TEXTS[3]}").wait_for()
    created = await hostile.operator.call("POST", f"/v1/gateway/groups/{hostile.ids['group']}/usage_links", {})
    await opened(page, created["url"])
    await page.get_by_role("heading", name=f"Usage of {TEXTS[3]}").wait_for()
    page_content = await page.evaluate(_LOOK)
    assert _wrong("embedded", page_content) == []


async def test_links_take_no_scripts(page: Page, hostile: Hostile) -> None:
    await signed_in(page, hostile.operator.api_key, "/console/playground")
    script = """async (addresses) => {
        const {h} = await import("/console/assets/dom.mjs");
        return addresses.filter((href) => { try { h("a", {href}); return true; } catch { return false; } });
    }"""
    addresses = [
        "javascript:1",
        " JaVaScRiPt:1",
        "java\tscript:1",
        "\x01javascript:1",
        "data:text/html,x",
        "vbscript:1",
        "/console",
    ]
    assert await page.evaluate(script, addresses) == ["/console"]
    props = (
        "async () => { const {h} = await import('/console/assets/dom.mjs'); return h('p', {}, '<b>x</b>').outerHTML; }"
    )
    assert json.dumps(await page.evaluate(props)) == json.dumps("<p>&lt;b&gt;x&lt;/b&gt;</p>")
