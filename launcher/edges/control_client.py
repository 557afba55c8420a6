"""The five calls that the launcher makes of control's management API, and what their failures mean.

See docs/reference/management-api.md#deployments.
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from runtime.http.control_session import ControlSession
from runtime.tls.pinned import PeerTls

TIMEOUT_S = 10.0
_MAX_MESSAGE_CHARS = 500
_BUSY = frozenset((408, 429))


class ControlAwayError(Exception):
    """Control cannot be reached or cannot answer now. The message says how that showed."""


class ControlRefusedError(Exception):
    """Control answered, and refused."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class ControlClient:
    """One deployment, as the management API shows it."""

    def __init__(self, url: str, api_key: str, path: str, tls: PeerTls = True) -> None:
        self._deployment_url = url + path
        self._session = ControlSession(api_key, aiohttp.ClientTimeout(total=TIMEOUT_S), tls)

    async def close(self) -> None:
        await self._session.close()

    async def read(self) -> dict[str, Any]:
        return _deployment(await self._ask("GET", ""))

    async def change(self, changes: dict[str, Any]) -> dict[str, Any]:
        return _deployment(await self._ask("PATCH", "", changes))

    async def list_replicas(self, urls: Sequence[str]) -> dict[str, Any]:
        return _deployment(await self._ask("PUT", "/replicas", {"replicas": list(urls)}))

    async def move(self, status: str, error_message: str | None) -> None:
        await self._ask(
            "PUT", "/status", {"status": status} | ({"error_message": error_message} if error_message else {})
        )

    async def append(self, lines: Sequence[dict[str, Any]]) -> None:
        await self._ask("POST", "/logs/append", {"logs": list(lines)})

    async def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        try:
            url = self._deployment_url + path
            async with self._session.request(method, url, json=body) as answer:
                return _read(answer.status, await answer.json(content_type=None))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ControlAwayError(str(error) or "no answer in time") from None
        except ValueError:
            raise ControlAwayError("the answer is not JSON; is --url the management API?") from None


def _deployment(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, if it shows a deployment: a web server that answers every path with some JSON is not control."""
    if missing := {"status", "replicas", "wake_url", "load"}.difference(answer):
        raise ControlAwayError(f"the answer lacks {', '.join(sorted(missing))}; is --url the management API?")
    return answer


def _read(status: int, answer: Any) -> dict[str, Any]:
    """The answer of a success. Raises the error that the status stands for."""
    if status == 200 and isinstance(answer, dict):
        return answer
    message = str(answer.get("error") or answer) if answer and isinstance(answer, dict) else "no message"
    if status in _BUSY or not 400 <= status < 500:
        raise ControlAwayError(f"it answered {status}: {message[:_MAX_MESSAGE_CHARS]}")
    details = answer.get("details") if isinstance(answer, dict) else None
    if isinstance(details, list):
        message = "; ".join([message, *(f"{one.get('field')}: {one.get('message')}" for one in details)])
    raise ControlRefusedError(status, message[:_MAX_MESSAGE_CHARS])


async def local_address(url: str) -> str:
    """Our address on the route to control. OSError if the name does not resolve or there is no route."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    loop = asyncio.get_running_loop()
    family, kind, _, _, address = (await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM))[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # of a datagram socket: chooses the route, sends nothing
        return str(probe.getsockname()[0])
