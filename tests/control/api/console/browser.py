"""A browser at a control plane: it keeps its cookie, and names the page that a request comes from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientSession, DummyCookieJar

from tests.control.plane import Answer, ControlPlane

SESSION = "/console/session"
COOKIE = "tollgate_console"


@dataclass
class Browser:
    """Sends `cookie` itself, so that a test sees what was set, and may send anything."""

    plane: ControlPlane
    cookie: str = ""

    @property
    def origin(self) -> str:
        return str(self.plane.client.make_url("")).rstrip("/")

    async def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **more: Any
    ) -> Answer:
        all_headers = {"Origin": self.origin, "Cookie": self.cookie} | dict(headers or {})
        arguments = {"json": body} if body is not None else {}
        url = self.plane.client.make_url(path)
        async with (
            ClientSession(cookie_jar=DummyCookieJar()) as client,
            client.request(
                method,
                url,
                headers={name: value for name, value in all_headers.items() if value},
                allow_redirects=False,
                **arguments,
                **more,
            ) as answer,
        ):
            content = await (answer.json() if answer.content_type == "application/json" else answer.text())
            return Answer(answer.status, content, answer.headers)

    async def get(self, path: str, **more: Any) -> Answer:
        return await self.ask("GET", path, **more)

    async def try_log_in(self, key: str, **headers: str) -> Answer:
        return await self.ask("POST", SESSION, {"api_key": key}, headers)


async def logged_in(plane: ControlPlane, key: str | None = None) -> Browser:
    """A browser that logged in with this key, by default with the plane's own."""
    browser = Browser(plane)
    answer = await browser.try_log_in(key or plane.key)
    assert answer.status == 204, answer.body
    browser.cookie = answer.headers["Set-Cookie"].partition(";")[0]
    return browser
