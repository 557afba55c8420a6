"""A billing system on a socket that counts each id once, as Stripe and OpenMeter do, and misbehaves by a script.

`ok` takes and answers; `500` takes and answers 500; `503`, `429` and `drop before` take nothing; `drop` takes and
closes; `late` takes and answers after the client gave up; `twice` takes and answers twice at once, `again` once more a
little later; `garbage` takes and answers no HTTP.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from tests.ports import HOST, own_port

TAKES = frozenset(("ok", "500", "drop", "late", "twice", "again", "garbage"))
BEHAVIOURS = (*sorted(TAKES), "503", "429", "drop before")


@dataclass
class ScriptedBilling:
    """`script`: what happens to the next requests; then all go well. `late_s` is longer than the client waits."""

    kind: str
    script: list[str] = field(default_factory=list)
    late_s: float = 0.6
    port: int = field(default_factory=own_port)
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    events: dict[str, Any] = field(default_factory=dict)
    """Accepted events by identifier of Stripe, or by source and id."""
    refuses: Callable[[Any], bool] = lambda one: False

    _again: asyncio.TimerHandle | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                path, headers, body = await _request(reader)
                self.requests.append((path, headers, body))
                if not await self._answer(writer, body):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, body: bytes) -> bool:
        """Answer one request; return whether the connection stays open."""
        behaviour = self.script.pop(0) if self.script else "ok"
        if behaviour == "drop before":
            return False
        if behaviour in ("503", "429"):
            writer.write(_response(int(behaviour), b"{}", b"Retry-After: 0\r\n"))
            return True
        status, content = self._take_form(body) if self.kind == "stripe" else self._take_batch(json.loads(body))
        if behaviour == "drop":
            return False
        if behaviour == "late":
            await asyncio.sleep(self.late_s)
        if behaviour == "garbage":
            writer.write(b"this is not HTTP\r\n\r\n")
            return False
        answer = _response(500, b"{}") if behaviour == "500" else _response(status, content)
        writer.write(answer * (2 if behaviour == "twice" else 1))
        await writer.drain()
        if behaviour == "again":
            self._again = asyncio.get_running_loop().call_later(0.02, writer.write, answer)
        return True

    def _take_form(self, body: bytes) -> tuple[int, bytes]:
        form = {name: values[0] for name, values in parse_qs(body.decode(), strict_parsing=True).items()}
        if self.refuses(form):
            return 400, json.dumps({"error": {"code": "timestamp_too_far_in_past", "message": "too old"}}).encode()
        if form["identifier"] in self.events:
            message = f"An event already exists with identifier {form['identifier']}."
            return 400, json.dumps({"error": {"type": "invalid_request_error", "message": message}}).encode()
        self.events[form["identifier"]] = form
        return 200, json.dumps({"object": "billing.meter_event"}).encode()

    def _take_batch(self, batch: list[Any]) -> tuple[int, bytes]:
        if any(self.refuses(one) for one in batch):
            return 400, b"one of these is wrong"
        for one in batch:
            self.events.setdefault(f"{one['source']} {one['id']}", one)
        return 204, b""


@asynccontextmanager
async def running(kind: str) -> AsyncIterator[ScriptedBilling]:
    billing = ScriptedBilling(kind)
    server = await asyncio.start_server(billing.serve, HOST, billing.port)
    try:
        yield billing
    finally:
        server.close()


async def _request(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    original = dict(line.split(": ", 1) for line in head[1:] if line)
    body = await reader.readexactly(int(fields["content-length"]))
    return head[0].split(" ")[1], original, body


def _response(status: int, body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d x\r\n%bContent-Length: %d\r\n\r\n%b" % (status, more, len(body), body)
