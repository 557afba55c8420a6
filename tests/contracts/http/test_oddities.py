"""Each row of the table of odd answers, over real sockets: what callers of each dialect see, and what is billed."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from policy.billing import COUNTED, REPORTED, Tokens
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES, Target
from policy.hosts import EgressRules
from proxy.edges.http.http_limits import HttpLimits
from proxy.edges.upstream.client import HttpUpstream
from proxy.edges.upstream.egress import Egress
from proxy.parts import DispatchSettings
from tests.fakes.directory import KEY, SLUG
from tests.fakes.front import listening
from tests.fakes.journal import ClosedCall
from tests.fakes.path import PathRig
from tests.inference_document import Answer, inference_document
from tests.upstream import Behaviour, Exchange, ScriptedUpstream
from tests.upstream.oddities import ODDITIES
from tests.upstream.oddities.reading import PATHS, request_body, understood
from tests.upstream.oddities.row import CALLERS, TARGET_MODEL, Counted, Oddity, Seen
from tests.waiting import eventually

SECRET = "sk-upstream-secret"
MODEL_API = "PLATFORM_MODEL_API"
SPOKEN_PATHS = {CHAT_COMPLETIONS: "/chat/completions", MESSAGES: "/messages", RESPONSES: "/responses"}


@dataclass(slots=True)
class Received:
    """An answer as it came."""

    status: int
    head: bytes
    body: bytes

    @property
    def content_type(self) -> str:
        return next((value for name, value in self.fields if name == "content-type"), "")

    @property
    def fields(self) -> list[tuple[str, str]]:
        lines = (line.decode("latin-1").partition(": ") for line in self.head.split(b"\r\n")[1:])
        return [(name.lower(), value) for name, _, value in lines if name]

    def answer(self, method: str, target: str, passes: bool) -> Answer:
        return Answer(method, target, self.status, self.fields, self.body, passes)


def cases() -> Iterator[tuple[Oddity, str, Seen]]:
    for row in ODDITIES:
        for caller in CALLERS:
            if (view := row.seen_by(caller)) is not None:
                yield row, caller, view


def test_each_row_has_a_name_of_its_own() -> None:
    names = [row.name for row in ODDITIES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("row", "caller", "view"), [pytest.param(*case, id=f"{case[0].name}, to {case[1]}") for case in cases()]
)
async def test_odd_answer_is_seen_and_billed_as_its_row_says(row: Oddity, caller: str, view: Seen) -> None:
    rig = PathRig()
    async with ScriptedUpstream(default=only_on(row)) as upstream:
        client = HttpUpstream(Egress(EgressRules.parse("127.0.0.0/8"), 5.0, None))
        rig.directory.add_slug(SLUG, target_of(row))
        rig.directory.secrets["s1"] = SECRET
        rig.settings = DispatchSettings({"VENDOR_A": upstream.url, MODEL_API: upstream.url})
        rig.over(client)
        async with listening(rig.pipeline.handle, HttpLimits(watch_interval_s=0.05)) as front:
            connection = await front.caller()
            connection.send(request(row, caller))
            received = parsed(await connection.read_to_end())
        await client.aclose()
    await eventually(lambda: len(rig.meters.calls) == 1)
    rig.check_settled()
    check_seen(received, caller, view)
    check_documented(received, caller, passes=caller == row.spoken)
    assert f"127.0.0.1:{upstream.port}".encode() not in received.head + received.body
    [closed] = rig.journal.closed
    logged = view.status if row.logged is None else row.logged
    assert (closed.status, rig.meters.calls[0].status) == (logged, logged)
    check_billed(closed, row)


def check_seen(received: Received, caller: str, view: Seen) -> None:
    everything = received.head + received.body
    answer = understood(caller, received.content_type, received.body)
    assert (received.status, answer.text, answer.ended) == (view.status, view.text, view.ended), everything
    for text in view.has:
        assert text in everything
    for text in (*view.lacks, TARGET_MODEL.encode(), SECRET.encode()):
        assert text not in everything


def check_documented(received: Received, caller: str, passes: bool) -> None:
    """Assert that the inference document has this answer."""
    document = inference_document()
    check = document.check_passed if passes else document.check
    check(received.answer("POST", PATHS[caller], passes))


def check_billed(closed: ClosedCall, row: Oddity) -> None:
    is_counted = isinstance(row.billed, Counted) or row.billed == Tokens()
    if isinstance(row.billed, Counted):
        assert closed.tokens.output == row.billed.output
        assert closed.tokens.input > 0
    else:
        assert closed.tokens == row.billed
    assert (closed.details, closed.source) == (row.details, COUNTED if is_counted else REPORTED)


def only_on(row: Oddity) -> Behaviour:
    """The row's answer on the path of its dialect, and on others the one of a server that lacks them."""

    async def behave(exchange: Exchange) -> None:
        has_path = exchange.received.path.endswith(SPOKEN_PATHS[row.spoken])
        await (row.sends if has_path else row.lacks)(exchange)

    return behave


def target_of(row: Oddity) -> Target:
    """A provider of the row's dialect. What the model API speaks, only its server can tell."""
    provider = "VENDOR_A" if row.spoken == MESSAGES else MODEL_API
    return Target(provider, secret_id="s1", target_model=TARGET_MODEL)


def request(row: Oddity, caller: str) -> bytes:
    body = json.dumps(request_body(caller, SLUG, row.stream) | row.asks).encode()
    head = f"POST {PATHS[caller]} HTTP/1.1\r\nHost: us\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def parsed(raw: bytes) -> Received:
    """Status, head and body of an answer. A chunked body may lack its end."""
    head, _, body = raw.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        body = dechunked(body)
    return Received(int(head.split(b" ")[1]), head, body)


def dechunked(rest: bytes) -> bytes:
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            break
        body += rest[:length]
        rest = rest[length + 2 :]
    return body
