"""The caller's end in memory: a request as the HTTP server would pass it on, and the recorded response."""

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from proxy.accounting.journaled_call import GoOn, UnwrittenRecord
from proxy.answers import Headers
from proxy.errors import CallerGoneError
from tests.fakes.directory import KEY, SLUG

Part = bytes | Exception | asyncio.Event


class FakeIncoming:
    """`parts`: the body's pieces, one a read. An event among them delays the read, an exception is raised."""

    def __init__(self, target: str = "/v1/chat/completions", method: str = "POST", **headers: str | None) -> None:
        fields: dict[str, str | None] = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}  # None removes a field
        self.method = method
        self.peer = "127.0.0.1"
        self.request_target = target
        self.fields: list[tuple[str, str]] = [(name, value) for name, value in fields.items() if value is not None]
        self.received_at = perf_counter()
        self.declared_bytes: int | None = None
        self.facts: dict[str, Any] = {}
        self.repeats = False
        self.body_wait_s = 0.0
        self.fault: Exception | None = None
        self.parts: deque[Part] = deque()
        self.reads = 0
        self.wait_start = asyncio.Event()

    def saying(self, body: Any) -> "FakeIncoming":
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.parts = deque([raw])
        self.declared_bytes = len(raw)
        return self

    @property
    def headers(self) -> Headers:
        return self.fields

    def header(self, name: str) -> str | None:
        return next((value for field_name, value in self.fields if field_name == name), None)

    def header_values(self, name: str) -> Sequence[str]:
        return [value for field_name, value in self.fields if field_name == name]

    def whole(self) -> bytes | None:
        part = self.parts[0] if len(self.parts) == 1 else None
        if not isinstance(part, bytes) or len(part) != self.declared_bytes:
            return None
        self.reads += 1
        self.parts.clear()
        return part

    async def read(self, at_least: int = 1) -> bytes:
        self.reads += 1
        await asyncio.sleep(0)  # the real one may suspend anywhere
        while self.parts:
            part = self.parts.popleft()
            if isinstance(part, asyncio.Event):
                self.wait_start.set()
                await part.wait()
            elif isinstance(part, Exception):
                raise part
            else:
                return part
        return b""


def asking(model: str = SLUG, **more: Any) -> FakeIncoming:
    """An unstreamed chat completion."""
    return FakeIncoming().saying({"model": model, "messages": [{"role": "user", "content": "hi"}], **more})


@dataclass
class FakeOutgoing:
    """The recorded response. While `room_left` is cleared, `room()` waits. `is_gone`: writes fail."""

    status: int = 0
    reason: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    entries: list[str] = field(default_factory=list)
    has_started: bool = False
    finished: bool = False
    aborted: bool = False
    is_gone: bool = False
    sent_bytes: int = 0
    room_wait_s: float = 0.0
    room_left: asyncio.Event = field(default_factory=asyncio.Event)
    wait_start: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.room_left.set()

    def start(
        self, status: int, headers: Headers, lines: str = "", reason: str = "", whole: bytes | None = None
    ) -> bool:
        assert not self.has_started, "a second head"
        self.status = status
        self.reason = reason
        *fields, end = lines.split("\r\n")
        assert not end, "a line without its end"
        self.headers = [*headers, *((name, value) for name, _, value in (field.partition(": ") for field in fields))]
        return whole is None or self.finish(whole)

    def write(self, data: bytes) -> bool:
        self._send("write", data)
        return self.room_left.is_set()

    async def room(self) -> None:
        await asyncio.sleep(0)  # the real one may suspend anywhere
        if not self.room_left.is_set():
            self.wait_start.set()
            await self.room_left.wait()

    def finish(self, data: bytes = b"") -> bool:
        self._send("finish", data)
        self.finished = True
        return self.room_left.is_set()

    def finish_later(self, record: UnwrittenRecord, finish: GoOn, size: int) -> bool:
        if self.room_left.is_set():
            record.then(finish)
        return self.room_left.is_set()

    def abort(self) -> None:
        self.aborted = True

    def _send(self, how: str, data: bytes) -> None:
        assert self.status, "bytes before a head"
        assert not self.finished, "bytes after the end"
        if self.is_gone:
            raise CallerGoneError
        self.has_started = True
        self.entries.append(how)
        self.pieces.append(data)
        self.sent_bytes += len(data)

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        return next((value for field_name, value in self.headers if field_name == name), None)
