"""The upstream server of all tests: HTTP/1.1 on a real socket, every byte chosen by the test.

A script is a `Behaviour`, a coroutine function of an `Exchange`. `ScriptedUpstream.plan` queues one per request;
`default` answers when none is queued. No behaviour sleeps unless the request asks for it: slow means "until the test
opens the gate" or "until the test sets the event".
"""

import asyncio
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tests.upstream.chat_completions import chat
from tests.upstream.exchange import Behaviour, Exchange, Gate, Received


@dataclass(slots=True)
class ScriptedUpstream:
    """The server. `async with` runs it on the test's event loop, `in_thread` on its own."""

    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    default: Behaviour | None = None
    """Answers a request for which nothing is planned. None: `chat()`."""
    gate: Gate = field(default_factory=Gate)
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    open_connections: int = 0
    failures: list[BaseException] = field(default_factory=list)
    port: int = 0
    _planned: deque[Behaviour] = field(default_factory=deque)
    _server: asyncio.Server | None = None
    _serving: set[asyncio.Task[None]] = field(default_factory=set)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    def plan(self, *behaviours: Behaviour) -> None:
        self._planned.extend(behaviours)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once `condition` holds. It is checked whenever a connection or a request begins or ends."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, self.host, self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the listener and all connections."""
        assert self._server is not None
        self._server.close()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        if self.failures and error is None:
            raise self.failures[0]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.ensure_future(self._serve(reader, writer, self.connections))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.open_connections += 1
        self._changed.set()
        try:
            while (exchange := await self._next(reader, writer, number)) is not None:
                await self._behave(exchange)
                if not exchange.keep:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # clients may close the connection at any time
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            self.failures.append(error)  # an error in the script fails the test
        finally:
            self.open_connections -= 1
            self._changed.set()
            writer.close()

    async def _next(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> Exchange | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        method, target, _ = first.split(" ")
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        received = Received(method, target, headers, head, number)
        self.received.append(received)
        self._changed.set()
        return Exchange(received, reader, writer, self.gate, _unread_bytes=int(received.header("content-length") or 0))

    async def _behave(self, exchange: Exchange) -> None:
        behaviour = self._planned.popleft() if self._planned else self.default or chat()
        await behaviour(exchange)
        self._changed.set()


@contextmanager
def in_thread(upstream: ScriptedUpstream) -> Iterator[ScriptedUpstream]:
    """Run `upstream` on an event loop of its own, for fixtures that outlive one test's loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="upstream", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(upstream.start(), loop).result(10)
        yield upstream
        asyncio.run_coroutine_threadsafe(upstream.stop(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
