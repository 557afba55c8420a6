"""`make console-shots`: a picture of each page of the console, light and dark, on three widths of screens.

The pages show a workspace that is in use (`scene.py`). Pictures go to build/console-shots/, as PAGE-WIDTH-SCHEME.png;
those of README.md to docs/pictures/. Names of pages as arguments picture these alone, `readme` those of README.md.
"""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal

from playwright.async_api import Page

from control.api.console.pages import PAGES
from tests.journeys.console.browsing import NARROW, WIDE, Faults, opened, running_browser, signed_in, watched_context
from tests.journeys.console.history import add_history
from tests.journeys.console.scene import Scene, furnish, started_place

DIRECTORY = Path(__file__).parents[3] / "build" / "console-shots"
README = DIRECTORY.parents[1] / "docs" / "pictures"
README_SIZE = 1200, 820
WIDTHS = NARROW, 1024, WIDE
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
REFUSED = "/console/requests?external_entity_id=night-shift"
SETTLE_MS = 1000
"""Live pages draw again and again, so no event says that a page is complete."""


def say(line: str) -> None:
    print(line, flush=True)


async def shoot(page: Page, path: str, name: str) -> None:
    await opened(page, path)
    await page.wait_for_timeout(SETTLE_MS)
    picture = DIRECTORY / f"{name}.png"
    await page.screenshot(path=picture, full_page=True, animations="disabled")
    say(f"  {picture.relative_to(DIRECTORY.parents[1])}")


async def shoot_all(scene: Scene, pages: Sequence[str]) -> list[str]:
    """Picture every page in every form. Return what went wrong on the pages."""
    origin = scene.stage.product.control
    faults = list[str]()
    async with running_browser() as browser:
        for width in WIDTHS:
            for scheme in SCHEMES:
                form = f"{width}-{scheme}"
                say(f"{width} px, {scheme}")
                async with AsyncExitStack() as stack:
                    keys = {"workspace": scene.api_key, "customer": scene.keys["support"]}
                    logged_in: dict[str, tuple[Page, Faults]] = {}
                    for role, key in keys.items():
                        context, watch = await stack.enter_async_context(
                            watched_context(browser, origin, width, scheme)
                        )
                        page = await context.new_page()
                        if role == "workspace" and "login" in pages:
                            await shoot(page, "/console/overview", f"login-{form}")
                        logged_in[role] = await signed_in(page, key), watch
                    for name in pages:
                        if name != "login":
                            page, _ = logged_in["customer" if name == "usage" else "workspace"]
                            await shoot(page, f"/console/{name}", f"{name}-{form}")
                    faults += [f"{form}: {fault}" for _, watch in logged_in.values() for fault in watch.texts]
    return faults


async def shoot_readme(scene: Scene) -> list[str]:
    """The pictures of README.md: what a wide screen shows first. Return what went wrong on the pages."""
    width, height = README_SIZE
    group = f"/console/groups?id={scene.groups['support']}"
    pictures: tuple[tuple[str, Scheme, str], ...] = (
        ("overview", "light", "/console/overview"),
        ("group", "dark", group),
        ("requests", "light", REFUSED),
    )
    faults = list[str]()
    README.mkdir(exist_ok=True)
    async with running_browser() as browser:
        for name, scheme, path in pictures:
            async with watched_context(browser, scene.stage.product.control, width, scheme) as (context, watch):
                page = await signed_in(await context.new_page(), scene.api_key, path)
                await page.set_viewport_size({"width": width, "height": height})
                await page.wait_for_timeout(SETTLE_MS)
                await page.screenshot(path=README / f"{name}.png", animations="disabled")
                say(f"  docs/pictures/{name}.png")
                faults += watch.texts
    return faults


async def main(pages: Sequence[str]) -> int:
    directory = Path(tempfile.mkdtemp(prefix="tollgate-shots-"))
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    try:
        say("starting the product")
        with started_place(directory) as place:
            say("filling a workspace")
            async with furnish(place) as scene:
                await add_history(scene)
                faults = await shoot_all(scene, [name for name in pages if name != "readme"])
                if "readme" in pages:
                    faults += await shoot_readme(scene)
            place.product.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for fault in faults:
        say(fault)
    say(f"{len(list(DIRECTORY.iterdir()))} pictures in {DIRECTORY.relative_to(Path.cwd())}; {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:] or ("login", *PAGES, "readme"))))
