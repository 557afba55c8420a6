"""Calls of any dialect over real sockets, to a replica of a platform model."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from tests.contracts.http.test_oddities import Received, parsed
from tests.contracts.http.test_path import Wire, wired
from tests.fakes.directory import KEY, SLUG, platform
from tests.fakes.path import PathRig
from tests.inference_document import inference_document
from tests.upstream.exchange import Behaviour
from tests.upstream.oddities.reading import PATHS, Understood, request_body, understood


@asynccontextmanager
async def replica(behaviour: Behaviour, dialects: tuple[str, ...] | None = None) -> AsyncIterator[Wire]:
    """The whole path to a server with this behaviour. `dialects`: those that its target states."""
    async with wired(PathRig()) as wire:
        stated = None if dialects is None else tuple(name.upper() for name in dialects)
        wire.rig.directory.add_slug(SLUG, replace(platform(), dialects=stated))
        wire.rig.directory.deploy("ACTIVE", wire.upstream.url)
        wire.upstream.default = behaviour
        yield wire


async def ask(wire: Wire, caller: str, stream: bool = True) -> tuple[int, bytes, Understood]:
    """Call; return the status, the body, and what the caller understands of it."""
    return await ask_on(wire, PATHS[caller], request_body(caller, SLUG, stream), caller)


async def ask_on(wire: Wire, path: str, body: dict[str, Any], caller: str) -> tuple[int, bytes, Understood]:
    answer = await answer_on(wire, path, body)
    return answer.status, answer.body, understood(caller, answer.content_type, answer.body)


async def answer_on(wire: Wire, path: str, body: dict[str, Any]) -> Received:
    text = json.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: us\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n"
    received = parsed(await wire.front.ask(f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode()))
    inference_document().check_passed(received.answer("POST", path, passes=True))
    return received


def asked_paths(wire: Wire) -> list[str]:
    """The paths on which the server was asked, in order."""
    return [received.path for received in wire.upstream.received]
