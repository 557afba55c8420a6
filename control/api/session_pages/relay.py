"""Carries bytes between a browser's WebSocket and the trainer's, and ends both with a reason.

Nothing grows: what the shell writes waits at the shell once the browser has not confirmed `WINDOW_BYTES`, and a browser
that types more than `MAX_TYPED_BYTES` that the shell does not read loses its terminal. Nothing of it is ever logged.

See docs/reference/training.md#interactive-sessions.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import WSMsgType

from control.api.session_pages.pairing import Terminal

JOIN_TIMEOUT_S = 10.0
MAX_MESSAGE_BYTES = 65_536 + 1024
"""The longest message of either side. aiohttp closes the connection above it."""
WINDOW_BYTES = 524_288
MAX_TYPED_BYTES = 1_048_576
MAX_CELLS = 1000
"""The most columns or rows of a terminal."""
LOOK_INTERVAL_S = 2.0
"""The interval of looks whether the session is still open to this browser."""
_REASON_BYTES = 123
"""The longest reason in a WebSocket's close frame."""


@dataclass(frozen=True, slots=True)
class End:
    """The reason why a terminal ends, for the person at the browser. `code`: of the WebSocket; 4001: no other shell."""

    reason: str
    code: int = 4000

    @property
    def message(self) -> bytes:
        return self.reason.encode()[:_REASON_BYTES].decode(errors="ignore").encode()


EXITED = End("The shell has ended.", 1000)
OVER = End("The session is over.", 4001)
NO_ANSWER = End(f"The node did not answer within {JOIN_TIMEOUT_S:.0f} s.")
LOST = End("The connection to the node was lost.")
TYPED_TOO_MUCH = End("More was typed than the shell reads.")
MALFORMED = End("The page sent a message that is no terminal's.", 1008)
LEFT = End("", 1000)
STOPPING = End("Tollgate's control plane is stopping.", 1001)
_ENDED = frozenset((WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR))


class Relay:
    """One terminal, from the browser's first message to its end."""

    def __init__(self, terminal: Terminal, is_open: Callable[[], Awaitable[bool]]) -> None:
        """`is_open`: whether the session still belongs to this browser. Asked every `LOOK_INTERVAL_S`."""
        self._terminal = terminal
        self._browser = terminal.browser
        self._is_open = is_open
        self._typed: asyncio.Queue[bytes | str] = asyncio.Queue()
        self._typed_bytes = 0
        self._unread_bytes = 0
        self._has_read = asyncio.Event()

    async def run(self) -> None:
        """Relay until one side ends, or the session does. Closes both connections."""
        parts = [self._from_browser(), self._to_node(), self._from_node(), self._watch()]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            ended_tasks, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            end = next(task for task in tasks if task in ended_tasks).result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._close(end)

    async def _close(self, end: End) -> None:
        node = self._terminal.node
        if node.done() and not node.cancelled():
            await node.result().close(code=1000)
        await self._browser.close(code=end.code, message=end.message)

    async def _from_browser(self) -> End:
        """Queue what is typed, also before the node is there; note at once what the browser has read."""
        while (message := await self._browser.receive()).type not in _ENDED:
            typed = message.data if message.type is WSMsgType.BINARY else self._taken(message.data)
            if typed is None:
                return MALFORMED
            self._typed_bytes += len(typed)
            if self._typed_bytes > MAX_TYPED_BYTES:
                return TYPED_TOO_MUCH
            if typed:
                self._typed.put_nowait(typed)
        return LEFT

    def _taken(self, text: str) -> str | None:
        """The meaning of a text message for the node, maybe nothing; None if a page sends no such message."""
        match _parsed(text):
            case {"type": "read", "bytes": count} if type(count) is int and 0 <= count <= self._unread_bytes:
                self._unread_bytes -= count
                self._has_read.set()
                return ""
            case {"type": "resize", "columns": columns, "rows": rows} if _is_size(columns) and _is_size(rows):
                return orjson.dumps({"type": "resize", "columns": columns, "rows": rows}).decode()
        return None

    async def _to_node(self) -> End:
        node = await self._terminal.node
        while True:
            typed = await self._typed.get()
            try:
                await (node.send_str(typed) if isinstance(typed, str) else node.send_bytes(typed))
            except ConnectionError:
                return LOST
            self._typed_bytes -= len(typed)

    async def _from_node(self) -> End:
        node = await self._terminal.node
        while (message := await node.receive()).type is WSMsgType.BINARY:
            while self._unread_bytes > WINDOW_BYTES:
                self._has_read.clear()
                await self._has_read.wait()
            self._unread_bytes += len(message.data)
            try:
                await self._browser.send_bytes(message.data)
            except ConnectionError:
                return LEFT
        if message.type is WSMsgType.CLOSE and message.data == 1000:
            return EXITED
        return End(message.extra) if message.type is WSMsgType.CLOSE and message.extra else LOST

    async def _watch(self) -> End:
        try:
            async with asyncio.timeout(JOIN_TIMEOUT_S):
                await asyncio.shield(self._terminal.node)
        except TimeoutError:
            return NO_ANSWER
        while True:
            if not await self._is_open():
                return OVER
            await asyncio.sleep(LOOK_INTERVAL_S)


def _is_size(cells: object) -> bool:
    return type(cells) is int and 1 <= cells <= MAX_CELLS


def _parsed(text: Any) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        return None
