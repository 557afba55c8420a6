"""Inputs for the dialect tests: a received request, targets, and streams split at any offsets."""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson
from hypothesis import strategies as st

from policy.billing import MAX_REPORTED_TOKENS
from policy.endpoints import Target, VendorCConfig
from proxy.accounting.metering import NOTHING_REPORTED, AnswerReader, DeliveredCounter, Reported
from proxy.answers import Headers
from proxy.dialects.body_readers import UnreadAnswer
from proxy.dialects.dialect_attempt import DialectAttempt
from proxy.dialects.registry import Dialects
from proxy.dialects.upstream_request import UpstreamRequest
from proxy.http_rules.headers import answer_fields
from proxy.json_text.large_json import Outline
from proxy.json_text.segmented_body import RequestBody
from proxy.records.head_facts import HeadFacts, Purpose
from proxy.records.messages import Form, Incoming, Received
from proxy.time_slices import Uncut
from tests.fakes.seals import SEAL_KEYS, WORKSPACE

SLUG = "acme/fast"
CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
SSE = [("content-type", "text/event-stream; charset=utf-8")]
JSON = [("content-type", "application/json")]

VENDOR_A = Target("VENDOR_A", secret_id="s", target_model="claude-x")
VENDOR_B = Target("VENDOR_B", secret_id="s", target_model="gpt-x")
PLATFORM = Target("PLATFORM", model_id="m")
VENDOR_C = Target(
    "VENDOR_C", secret_id="s", target_model="gem-x", vendor_c_config=VendorCConfig("my-project", "eu-west1")
)


@dataclass
class FakeIncoming:
    """The part of a request's head that a dialect may read."""

    headers: Headers = ()
    method: str = "POST"
    request_target: str = CHAT
    peer: str = ""
    received_at: float = 0.0
    declared_bytes: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    repeats: bool = False
    body_wait_s: float = 0.0
    fault: Exception | None = None

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    def header_values(self, name: str) -> Sequence[str]:
        return [value for key, value in self.headers if key == name]

    def whole(self) -> bytes | None:
        raise AssertionError("a dialect reads no socket")

    async def read(self, at_least: int = 1) -> bytes:
        raise AssertionError("a dialect reads no socket")


@dataclass
class FakeReceived:
    """A request, as the dialects read it."""

    incoming: Incoming
    facts: HeadFacts
    body: bytes
    json: dict[str, Any]
    slug: str
    streaming: bool
    outline: Outline | None = None
    upload: Form | None = None
    granted_cap: int | None = None
    workspace_id: str = WORKSPACE


def received(body: dict[str, Any] | bytes, path: str = CHAT, headers: Headers = ()) -> Received:
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    parsed = orjson.loads(raw)
    facts = HeadFacts("r", path, Purpose.INFER, "", None)
    return FakeReceived(
        incoming=FakeIncoming(headers),
        facts=facts,
        body=raw,
        json=parsed,
        slug=parsed["model"],
        streaming=parsed.get("stream") is True,
    )


def frames(*payloads: Any, end: bytes = b"\n\n", has_done: bool = True) -> bytes:
    """Payloads as a Chat Completions stream."""
    out = [payload if isinstance(payload, bytes) else b"data: " + orjson.dumps(payload) + end for payload in payloads]
    return b"".join(out) + (b"data: [DONE]" + end if has_done else b"")


def events(*payloads: dict[str, Any]) -> bytes:
    """Payloads as a Messages or Responses stream: each event named by its type."""
    return b"".join(b"event: %s\ndata: %s\n\n" % (p["type"].encode(), orjson.dumps(p)) for p in payloads)


def payloads(stream: bytes) -> list[Any]:
    """The payloads that a client parses: JSON values, and `[DONE]` as text."""
    lines = stream.replace(b"\r\n", b"\n").split(b"\n")
    data = [line[5:].strip() for line in lines if line.startswith(b"data:")]
    return ["[DONE]" if text == b"[DONE]" else orjson.loads(text) for text in data]


def read(reader: AnswerReader, pieces: Iterable[bytes]) -> bytes:
    return b"".join(reader.feed(piece) for piece in pieces) + reader.end()


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """`data` in pieces that end at `places`."""
    marks = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(marks)]


CUTS = st.lists(st.integers(0, 10_000), max_size=30) | st.just(list(range(10_000)))


@dataclass(slots=True)
class WholeRequest(UpstreamRequest):
    """A request for a target with its body."""

    body: RequestBody = b""


def build_request(request: Received, target: Target, credential: str | None) -> WholeRequest:
    """The request of the first attempt."""
    dialects = Dialects(lambda: 0.0, SEAL_KEYS)
    attempt = dialects.first_attempt(request, target)
    head = dialects.build_request(request, target, credential, attempt)
    return WholeRequest(head.path, head.headers, head.location, body=dialects.build_body(request, target, attempt))


def answer_reader(request: Received, target: Target, headers: Headers, most: int = MAX_REPORTED_TOKENS) -> AnswerReader:
    """The reader of the first attempt's answer."""
    dialects = Dialects(lambda: 0.0, SEAL_KEYS)
    content_type = answer_fields(headers).content_type
    attempt = dialects.first_attempt(request, target)
    return AnswerOfAnyForm(dialects.unread_answer(request, attempt, content_type, headers, most))


class AnswerOfAnyForm:
    """Reads an answer as the relay does: its first bytes choose its reader."""

    def __init__(self, unread: UnreadAnswer) -> None:
        self._unread = unread
        self.reader: AnswerReader | None = None

    @property
    def reported(self) -> Reported:
        return NOTHING_REPORTED if self.reader is None else self.reader.reported

    @property
    def failed(self) -> bool:
        return self.reader is not None and self.reader.failed

    @property
    def unknown_stop(self) -> str:
        return "" if self.reader is None else self.reader.unknown_stop

    @property
    def streams(self) -> bool:
        return self.reader is not None and self.reader.streams

    @property
    def ended(self) -> bool:
        return self.reader is not None and self.reader.ended

    @property
    def flows(self) -> bool:
        return self.reader is not None and self.reader.flows

    @property
    def waits(self) -> int:
        return 0 if self.reader is None else self.reader.waits

    def waited(self) -> bytes:
        return b"" if self.reader is None else self.reader.waited()

    def feed(self, data: bytes) -> bytes:
        if self.reader is not None:
            return self.reader.feed(data)
        self.reader = self._unread.reader(data)
        return b"" if self.reader is None else self.reader.feed(self._unread.begun)

    def prepare_end_in_slices(self) -> Generator[Uncut | None, Any, None]:
        if self.reader is not None:
            yield from self.reader.prepare_end_in_slices()

    def end(self) -> bytes:
        if self.reader is not None:
            return self.reader.end()
        self.reader = self._unread.reader(b"", is_all=True)
        assert self.reader is not None
        return self.reader.feed(self._unread.begun) + self.reader.end()


def delivered_counter(request: Received, content_type: str = "") -> DeliveredCounter:
    return Dialects(lambda: 0.0, SEAL_KEYS).delivered_counter(request, content_type)


def first_attempt(request: Received, target: Target) -> DialectAttempt:
    return Dialects(lambda: 0.0, SEAL_KEYS).first_attempt(request, target)
