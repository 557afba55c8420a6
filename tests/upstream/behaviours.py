"""Behaviours independent of any dialect: complete, raw, early, late, silent and endless answers."""

import asyncio
import json
from typing import Any

from tests.upstream.exchange import Behaviour, Exchange


def head(status: int, headers: dict[str, str] | None = None) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    return f"HTTP/1.1 {status} Whatever\r\n{lines}\r\n".encode()


def chunked(*pieces: bytes, end: bool = True) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + (b"0\r\n\r\n" if end else b"")


def answer(status: int = 200, body: bytes = b"", headers: dict[str, str] | None = None) -> Behaviour:
    """An answer with a correct content-length."""

    async def behave(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.send(head(status, {"content-length": str(len(body)), **(headers or {})}) + body)

    return behave


def answer_json(status: int, value: Any, headers: dict[str, str] | None = None) -> Behaviour:
    return answer(status, json.dumps(value).encode(), {"content-type": "application/json", **(headers or {})})


def raw(*pieces: bytes, then: str = "keep") -> Behaviour:
    """Send each piece in a write of its own; then `keep` the connection, `close` it or `reset` it."""

    async def behave(exchange: Exchange) -> None:
        await exchange.read_body()
        for piece in pieces:
            await exchange.send(piece)
            await asyncio.sleep(0)
        if then != "keep":
            {"close": exchange.close, "reset": exchange.reset}[then]()

    return behave


def early(behaviour_bytes: bytes, then: str = "keep") -> Behaviour:
    """Answer before the request's body is read, and never read it."""

    async def behave(exchange: Exchange) -> None:
        await exchange.send(behaviour_bytes)
        if then == "close":
            exchange.close()
        else:
            await exchange.client_closed()

    return behave


def held(event: asyncio.Event, before: bytes = b"", after: bytes = b"") -> Behaviour:
    """Send `before`, wait for `event`, send `after`: a slow head or a slow body."""

    async def behave(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.send(before)
        await event.wait()
        await exchange.send(after)

    return behave


def silent(before: bytes = b"") -> Behaviour:
    """Send `before`, then nothing until the client closes the connection."""

    async def behave(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.send(before)
        await exchange.client_closed()
        exchange.keep = False

    return behave


def endless(before: bytes, piece: bytes) -> Behaviour:
    """Send `before`, then repeat `piece` until the client closes the connection."""

    async def behave(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.send(before)
        while True:
            await exchange.send(piece)

    return behave


def gated(behaviour: Behaviour) -> Behaviour:
    """Read the request, wait at the gate, then run `behaviour`."""

    async def behave(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.gate.passed()
        await behaviour(exchange)

    return behave
