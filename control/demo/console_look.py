"""The demo's look at the console: a login as a browser does it, and the figures of the Overview."""

from typing import Any

import aiohttp

from control.demo.scene import Scene, expect, until


async def console_shown(scene: Scene) -> list[str]:
    """log in to the console as a browser does, and read its overview"""
    control = scene.product.control
    jar = aiohttp.CookieJar(unsafe=True)  # the demo's address is an IP, for which the default jar keeps no cookie
    async with aiohttp.ClientSession(control, headers={"Origin": control}, cookie_jar=jar) as browser:
        async with browser.post("/console/session", json={"api_key": scene.operator.api_key}) as answer:
            expect(answer.status == 204, f"the login answered {answer.status}")
        async with browser.get("/console/overview") as answer:
            expect(answer.status == 200 and answer.content_type == "text/html", f"the page answered {answer.status}")

        async def look() -> list[Any]:
            async with browser.get("/v1/gateway/traffic", params={"period": "hour"}) as answer:
                expect(answer.status == 200, f"the overview's figures answered {answer.status}")
                return list((await answer.json())["items"])

        items = await until(look, "no traffic was shown")
        await browser.delete("/console/session")
    calls, refusals = (sum(item[name] for item in items) for name in ("calls", "refusals"))
    return [
        f"console: {control}/console (while the demo runs; `tollgate demo --stay` leaves it open)",
        f"last hour: {calls} calls to {len(items)} slugs, {refusals} refused",
    ]
