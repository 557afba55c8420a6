"""A real-socket HTTP/1.1 server whose every byte a test chooses; it records what it received.

`async with ScriptedUpstream() as upstream:` runs it on the test's own loop. `upstream.plan(...)` queues behaviours, one
per request; without any it answers like a model server that speaks Chat Completions. A behaviour is a coroutine
function of an `Exchange`; the factories below make the usual ones. Nothing here sleeps: slow means "until the test
sets the event".
"""

import asyncio
import json
import socket
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

Behaviour = Callable[["Exchange"], Awaitable[None]]
LINGER_ZERO = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Received:
    """One request as it came; header names in lower case."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    head: bytes
    connection: int
    body: bytes = b""

    def header(self, name: str) -> str | None:
        return next((value for known, value in self.headers if known == name), None)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class Exchange:
    """One request in the hands of a behaviour. `keep` says whether the connection may carry another."""

    received: Received
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    keep: bool = True
    _unread_bytes: int = 0

    async def read_body(self) -> bytes:
        if self._unread_bytes:
            self.received.body += await self.reader.readexactly(self._unread_bytes)
            self._unread_bytes = 0
        return self.received.body

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def gone(self) -> None:
        """Until the client closed the connection."""
        try:
            while await self.reader.read(65_536):
                pass
        except ConnectionError:
            pass

    def close(self) -> None:
        """FIN."""
        self.keep = False
        self.writer.close()

    def reset(self) -> None:
        """RST."""
        self.keep = False
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
        self.writer.transport.abort()


@dataclass(slots=True)
class ScriptedUpstream:
    """The server. `default` answers when nothing is planned."""

    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    default: Behaviour | None = None
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
        """Until `condition` holds; looked at whenever a connection or request came or went."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self.host, self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()
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
            pass  # the client went away, which is its right
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            self.failures.append(error)  # a mistake in the script must fail the test
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
        return Exchange(received, reader, writer, _unread_bytes=int(received.header("content-length") or 0))

    async def _behave(self, exchange: Exchange) -> None:
        behaviour = self._planned.popleft() if self._planned else self.default or chat()
        await behaviour(exchange)
        self._changed.set()


# --- behaviours ------------------------------------------------------------------------------------------------------


def head(status: int, headers: dict[str, str] | None = None) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    return f"HTTP/1.1 {status} Whatever\r\n{lines}\r\n".encode()


def chunked(*pieces: bytes, end: bool = True) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + (b"0\r\n\r\n" if end else b"")


def answer(status: int = 200, body: bytes = b"", headers: dict[str, str] | None = None) -> Behaviour:
    """An answer with a content-length that holds."""

    async def behave(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.send(head(status, {"content-length": str(len(body)), **(headers or {})}) + body)

    return behave


def answer_json(status: int, value: Any, headers: dict[str, str] | None = None) -> Behaviour:
    return answer(status, json.dumps(value).encode(), {"content-type": "application/json", **(headers or {})})


def raw(*pieces: bytes, then: str = "keep") -> Behaviour:
    """These bytes, each piece a write of its own; then `keep` the connection, `close` it or `reset` it."""

    async def behave(exchange: Exchange) -> None:
        await exchange.read_body()
        for piece in pieces:
            await exchange.send(piece)
            await asyncio.sleep(0)
        if then != "keep":
            {"close": exchange.close, "reset": exchange.reset}[then]()

    return behave


def early(behaviour_bytes: bytes, then: str = "keep") -> Behaviour:
    """Answers before the request's body was read, and never reads it."""

    async def behave(exchange: Exchange) -> None:
        await exchange.send(behaviour_bytes)
        if then == "close":
            exchange.close()
        else:
            await exchange.gone()

    return behave


def held(event: asyncio.Event, before: bytes = b"", after: bytes = b"") -> Behaviour:
    """`before`, then nothing until `event`, then `after`: slow heads and slow bodies."""

    async def behave(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.send(before)
        await event.wait()
        await exchange.send(after)

    return behave


def silent(before: bytes = b"") -> Behaviour:
    """`before`, then nothing until the client gives up."""

    async def behave(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.send(before)
        await exchange.gone()
        exchange.keep = False

    return behave


def endless(before: bytes, piece: bytes) -> Behaviour:
    """`before`, then `piece` again and again for as long as the client takes it."""

    async def behave(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.send(before)
        while True:
            await exchange.send(piece)

    return behave


# --- a model server that speaks Chat Completions ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int = 12
    completion_tokens: int = 5
    cached_tokens: int = 4

    def wire(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


def chat(words: tuple[str, ...] = ("Hello", " there", "!"), usage: Usage | None = Usage()) -> Behaviour:
    """Plain or streamed as the request asks; the usage chunk only if the request asks for it, as vendors do."""

    async def behave(exchange: Exchange) -> None:
        request = json.loads(await exchange.read_body() or b"{}")
        model = request.get("model", "unknown")
        if request.get("stream"):
            asked = bool((request.get("stream_options") or {}).get("include_usage"))
            await exchange.send(head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))
            for frame in chat_frames(model, words, usage if asked else None):
                await exchange.send(chunked(frame, end=False))
                await asyncio.sleep(0)
            await exchange.send(b"0\r\n\r\n")
        else:
            body = json.dumps(chat_body(model, words, usage)).encode()
            headers = {"content-type": "application/json", "content-length": str(len(body))}
            await exchange.send(head(200, headers) + body)

    return behave


def chat_body(model: str, words: tuple[str, ...], usage: Usage | None) -> dict[str, Any]:
    message = {"role": "assistant", "content": "".join(words)}
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }
    return body | ({"usage": usage.wire()} if usage else {})


def chat_frames(model: str, words: tuple[str, ...], usage: Usage | None) -> list[bytes]:
    """The SSE frames of a streamed answer, `[DONE]` included."""
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}
    rest = {"usage": None} if usage else {}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": word} for word in words), {}]
    frames = [
        base
        | {"choices": [{"index": 0, "delta": delta, "finish_reason": None if number < len(words) + 1 else "stop"}]}
        | rest
        for number, delta in enumerate(deltas)
    ]
    if usage:
        frames.append(base | {"choices": [], "usage": usage.wire()})
    return [f"data: {json.dumps(frame, separators=(',', ':'))}\n\n".encode() for frame in frames] + [
        b"data: [DONE]\n\n"
    ]
