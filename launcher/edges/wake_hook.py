"""The server that control asks for replicas: `POST` to a path that only control knows."""

import hmac
import secrets
from collections.abc import Callable

from aiohttp import web

from runtime.http.server import FrontLimits, FrontRunner

_LIMITS = FrontLimits(max_connections=64)
_MAX_BODY_BYTES = 65_536


class WakeHook:
    """Answers 202 at once and calls `wake`. Another path is 404 with any method, another method 405."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._secret = secrets.token_urlsafe(32)
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_route("*", "/wake/{secret}", self._answer)
        self._runner = FrontRunner(app, _LIMITS, shutdown_timeout=1.0)
        self._base_url = ""

    async def start(self, host: str, port: int) -> None:
        """Listen. OSError if the port is taken or the address is not this machine's."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        bound = self._runner.addresses[0][1]
        self._base_url = base_url(host, int(bound))

    async def close(self) -> None:
        await self._runner.cleanup()

    @property
    def shown_url(self) -> str:
        """The address that it listens at, without the secret."""
        return self._base_url

    @property
    def url(self) -> str:
        """The URL for control. Contains the secret: never to be logged."""
        return f"{self._base_url}/wake/{self._secret}"

    @property
    def path_secret(self) -> str:
        return self._secret

    async def _answer(self, request: web.Request) -> web.Response:
        if not hmac.compare_digest(request.match_info["secret"].encode(errors="replace"), self._secret.encode()):
            return web.json_response({"error": "Not Found"}, status=404)
        if request.method != "POST":
            return web.json_response({"error": "Method Not Allowed"}, status=405, headers={"Allow": "POST"})
        await request.read()
        self._wake()
        return web.json_response({}, status=202)


def base_url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
