"""Health at a glance, first on the overview: what fails, how much of it, and the page where it is mended."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from playwright.async_api import Locator, Page, expect

from tests.journeys.conftest import Stage
from tests.journeys.console.browsing import assert_accessible, assert_fits, signed_in
from tests.journeys.console.scene import Place, Scene
from tests.journeys.product import OperatorClient

DAY_MS = 86_400_000


def health(page: Page) -> Locator:
    return page.get_by_role("region", name="Health")


def line(page: Page, part: str) -> Locator:
    return health(page).get_by_role("listitem").filter(has_text=part)


@contextmanager
def stopped_proxy(place: Place) -> Iterator[None]:
    """A proxy that reported yesterday and was killed since: its last report is all that is left of it."""
    with closing(sqlite3.connect(place.product.data / "control.db", timeout=30)) as database:
        with database:
            columns = ", ".join(row[1] for row in database.execute("PRAGMA table_info(spend_machines)"))
            values = columns.replace("machine,", "'killed',").replace("reported_at_ms", f"reported_at_ms - {DAY_MS}")
            database.execute(f"INSERT INTO spend_machines ({columns}) SELECT {values} FROM spend_machines LIMIT 1")
        yield
        with database:
            database.execute("DELETE FROM spend_machines WHERE machine = 'killed'")


async def failing_endpoint(stage: Stage) -> None:
    """An endpoint whose deployment its launcher gave up."""
    model = await stage.operator.model(f"{stage.name}-broken", "http://127.0.0.1:9")
    await stage.operator.endpoint(f"{stage.slug}-broken", model)
    (deployment,) = (await stage.operator.call("GET", f"/v1/models/{model}/deployments"))["items"]
    path = f"/v1/models/{model}/deployments/{deployment['id']}"
    await stage.operator.call("POST", f"{path}/deactivate")


async def test_health_names_what_fails_with_count_and_link(
    page: Page, scene: Scene, stage: Stage, place: Place
) -> None:
    await failing_endpoint(stage)
    price = {
        "slug": f"{stage.slug}-other",
        "currency": "EUR",
        "valid_from": "2026-01-01",
        "input_per_million": "1",
        "output_per_million": "1",
    }
    await stage.operator.call("PUT", "/v1/gateway/prices", price)
    await stage.ask(await stage.key_without_limits())
    await stage.events_of(stage.name, 1)
    with stopped_proxy(place):
        await signed_in(page, scene.api_key, "/console/overview")
        await expect(health(page).get_by_role("heading")).to_contain_text("need attention")
        await expect(line(page, "Webhooks")).to_contain_text("1 of ")
        await expect(line(page, "Webhooks")).to_contain_text("failing")
        await expect(line(page, "Webhooks")).to_contain_text("https://broken.hooks.example.com/in")
        await expect(line(page, "Endpoints")).to_contain_text("failing")
        await expect(line(page, "Unpriced calls")).to_contain_text("in 24 h")
        await expect(line(page, "Proxies")).to_contain_text("1 of 2 failing")
        await expect(line(page, "Proxies")).to_contain_text("start it again")
        await expect(line(page, "Control")).to_contain_text("works")
        box = await health(page).bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 900, "it is on the first screen"
        await assert_accessible(page)
        await assert_fits(page)
        await line(page, "Webhooks").get_by_role("link").click()
        await page.wait_for_url("**/console/webhooks")


async def test_health_of_a_workspace_with_nothing_configured_is_well(page: Page, place: Place, stage: Stage) -> None:
    created = await asyncio.to_thread(place.product.command, "workspace", "create", "fresh", "--prefix", "fresh")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    await signed_in(page, created["api_key"], "/console/overview")
    await expect(health(page).get_by_role("heading")).to_have_text("Health all well")
    await expect(line(page, "Webhooks")).to_contain_text("none created")
    await expect(line(page, "Unpriced calls")).to_contain_text("no prices set")
    of_health = [url for url in requests if "/gateway/health" in url or "/prices" in url or "/usage_report" in url]
    assert len(of_health) == 3, "it costs few requests"
    traffic = await OperatorClient(stage.session, place.product, created["api_key"]).call("GET", "/v1/gateway/traffic")
    assert traffic["items"] == [], "looking at it makes no traffic"
    await assert_accessible(page)
