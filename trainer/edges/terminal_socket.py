"""The WebSocket of one terminal to control: the trainer's side of the internal API's `/terminals/{terminal_id}`.

See docs/reference/training.md#interactive-sessions.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

import aiohttp
import orjson

from runtime.tls.pinned import PeerTls
from trainer.control import ControlLostError, Size

_PATH = "/internal/v1/training/terminals"
_CONNECT_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 3.0
_HEARTBEAT_S = 20.0
_MAX_MESSAGE_BYTES = 65_536 + 1024
_WITH_REASON = 4000
_REASON_BYTES = 123


class TerminalSocket:
    """A `trainer.control.ControlSocket`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def receive(self) -> bytes | Size | None:
        """Return what was typed, or the terminal's new size. None: control closed the connection."""
        message = await self._socket.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            typed: bytes = message.data
            return typed
        return _size(message.data) if message.type is aiohttp.WSMsgType.TEXT else None

    async def send(self, output: bytes) -> None:
        """Returns when control can take more. Raises ControlLostError."""
        try:
            await self._socket.send_bytes(output)
        except ConnectionError:
            raise ControlLostError from None

    async def close(self, reason: str | None) -> None:
        """None: the shell has ended by itself."""
        message = (reason or "").encode()[:_REASON_BYTES].decode(errors="ignore").encode()
        await self._socket.close(code=_WITH_REASON if reason else 1000, message=message)


class TerminalDialler:
    """Connects terminals to control."""

    def __init__(self, control_url: str, token: str, tls: PeerTls = True) -> None:
        self._url = control_url + _PATH
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls), headers={"Authorization": f"Bearer {token}"}, trust_env=False
        )

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def dial(self, terminal_id: str) -> AsyncIterator[TerminalSocket]:
        """The connection of a terminal. ControlLostError if control is away, or nobody waits for it any more."""
        url = f"{self._url}/{quote(terminal_id, safe='')}"
        timeout = aiohttp.ClientWSTimeout(ws_close=_CLOSE_TIMEOUT_S)
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                socket = await self._session.ws_connect(
                    url, heartbeat=_HEARTBEAT_S, max_msg_size=_MAX_MESSAGE_BYTES, timeout=timeout
                )
        except (aiohttp.ClientError, TimeoutError, OSError):
            raise ControlLostError from None
        async with socket:
            yield TerminalSocket(socket)


def _size(text: str) -> Size | None:
    try:
        wire = orjson.loads(text)
        columns = wire["columns"]
        rows = wire["rows"]
    except (ValueError, KeyError, TypeError):
        return None
    return Size(columns, rows) if type(columns) is int and type(rows) is int else None
