"""A caller's request and the response to it, a call to an upstream and its answer.

Protocols hide the servers and clients from the stages and rules. `Received` is all that the dialects read of a call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from policy.hosts import Reach
from proxy.accounting.journaled_call import GoOn, JournaledCall, UnwrittenRecord
from proxy.answers import AnswerFields, Headers
from proxy.json_text.large_json import Outline
from proxy.json_text.segmented_body import RequestBody
from proxy.records.head_facts import HeadFacts
from proxy.records.request_fields import RequestFields

MODELS_PATH = "/v1/models"


ALIKE = "alike"
"""The name of a fact: the facts of a request whose head differs only in its credential."""


class Incoming(Protocol):
    """One request from the HTTP server. Its body is not read yet."""

    method: str
    received_at: float
    """Time at which the head was complete: monotonic seconds (`time.perf_counter`)."""
    declared_bytes: int | None
    """`content-length`, which is not among the fields. None if the body is chunked or there is none."""
    facts: dict[str, Any]
    """Facts of the head alone that stages computed, each with a name. Requests with the same head may share it, so
    it depends on nothing else: not on `declared_bytes`, the time or policy. A server bounds how long it lasts."""
    body_wait_s: float
    """Time spent waiting for the body."""
    fault: Exception | None
    """Reason why the bytes are no valid request; then no other field is meaningful. None for a valid request."""

    @property
    def repeats(self) -> bool:
        """Another request had this head before: what is kept for it will be of use."""
        ...

    @property
    def peer(self) -> str:
        """The address of the connection's other end; "" if it has none, or has gone."""
        ...

    @property
    def request_target(self) -> str:
        """Path and query as sent, percent-encoded."""
        ...

    @property
    def headers(self) -> Headers:
        """All header fields in order: names in lower case, values as sent."""
        ...

    def header(self, name: str) -> str | None:
        """The first value of a field; `name` in lower case. Cheaper than searching `headers`."""
        ...

    def header_values(self, name: str) -> Sequence[str]:
        """All values of a field, in order."""
        ...

    def whole(self) -> bytes | None:
        """All of a body of declared length, if it is here and nothing of it was read: it counts as read then."""
        ...

    async def read(self, at_least: int = 1) -> bytes:
        """The next bytes of the body; b"" at its end. Waits for `at_least` so many, up to 64 kB, or the body's end.

        Sends `100 Continue` first if the caller expects it (RFC 9110 10.1.1). Raises `MalformedBodyError` if the
        framing is broken, and `SlowBodyError` if the body does not arrive in time.
        """
        ...


class Outgoing(Protocol):
    """The response to the caller. When the caller disconnects, the server cancels the handling task.

    All methods but `abort` raise `CallerGoneError` if they notice the disconnect first. Those that send return False
    if the buffer is full: await `room` before writing more, or at the end.
    """

    has_started: bool
    """True once the head was sent. From then on, a failure can only cut the response."""
    sent_bytes: int
    """Body bytes sent so far."""
    room_wait_s: float
    """Time spent waiting for a slow caller."""

    def start(
        self, status: int, headers: Headers, lines: str = "", reason: str = "", whole: bytes | None = None
    ) -> bool:
        """Set the head. It leaves with the first bytes; the server adds the framing headers.

        `whole`: all of the body. It is sent with the head at once, and ends the message.

        `lines`: further fields of our own, already encoded and safe: each `name: value` and CRLF. `reason`: the status
        line's reason phrase, which the server makes safe; "" means the status's standard phrase.
        """
        ...

    def write(self, data: bytes) -> bool:
        """Send now; b"" sends the head alone."""
        ...

    async def room(self) -> None:
        """Wait until the caller has read enough of what was written (backpressure)."""
        ...

    def finish(self, data: bytes = b"") -> bool:
        """Send the last bytes and end the message."""
        ...

    def finish_later(self, record: UnwrittenRecord, finish: GoOn, size: int) -> bool:
        """Send the last bytes with `finish`, up to `size`, when the call's close record is written or refused.

        The handling task may go; the next request waits. Returns False if there may be no room: wait for both then.
        """
        ...

    def abort(self) -> None:
        """Close the transport, so that the caller notices the cut response."""
        ...


class Upload(Protocol):
    """A request's body that is still arriving while it is sent."""

    content_type: str
    length: int | None
    """Size in bytes as sent upstream; None if the caller did not declare it."""
    received_bytes: int
    """Size of the part that has arrived."""

    def rename(self, model: str) -> None:
        """Give the upstream this model. Call it before `read`."""
        ...

    async def read(self) -> bytes:
        """The next bytes for the upstream as they arrive; b"" at the end of a valid body.

        Raises what `Incoming.read` raises, and a `RefusalError` for a body that turns out to be wrong.
        """
        ...


class Form(Upload, Protocol):
    """The form of a caller."""

    def forbid_state(self) -> None:
        """Refuse parts that name state in the vendor's account, those that were read already too.

        Raises `MalformedRequestError`; for a part that comes later, `read` does.
        """
        ...


@dataclass(slots=True)
class UpstreamCall:
    """One request to an upstream, ready to send. The client adds `host`, `content-length` and `x-request-id`."""

    url: str
    """scheme://host[:port]/path?query"""
    method: str
    headers: RequestFields
    body: RequestBody
    deadline: float
    """Time by which the last byte must have arrived: `time.perf_counter` seconds."""
    idle_timeout_s: float
    """Seconds that the upstream may be silent after its head."""
    reach: Reach
    upload: Upload | None = None
    """An upload is the body, in place of `body`."""
    record: JournaledCall | None = None
    """Open record of the call. The client must not send a byte before it is written."""
    waiting_since: float = 0.0
    """Time since which the call waits for its upstream. The client resets it if the last wait was for `record`."""
    request_id: str = ""
    """"" if there is none, or if it is among `headers`."""
    has_begun: bool = False
    """Set by the client with the first byte that it writes."""


class UpstreamAnswer(Protocol):
    """An upstream's response. The head has arrived; the body has not."""

    status: int
    ended: bool
    """True if the last read is known to have been the last one."""
    whole: bytes | None
    """All of the body, if it came with the head. It can be read all the same."""
    taking_s: float
    """Seconds that the `take` of `pour` has run in all: that is no wait for the upstream."""

    @property
    def fields(self) -> AnswerFields:
        """The facts of its head."""
        ...

    @property
    def headers(self) -> Headers:
        """All fields in order, names in lower case. `fields` costs less."""
        ...

    async def read(self) -> bytes:
        """The next bytes as they arrive; b"" at the end. Raises `UpstreamCutError` or `UpstreamTimeoutError`."""
        ...

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        """Pass the bytes to `take` as they arrive: to the end (True), or until `take` returns False for lack of room.

        `ended` says whether more may follow. Raises what `read` raises, and what `take` raises.
        """
        ...

    def interrupt(self) -> None:
        """Make a `pour` in progress return False, as for lack of room."""
        ...

    def let_end(self) -> None:
        """End the answer with what was read: discard the rest, and keep the connection if it ends within a second.

        Does not wait. `close` does nothing afterwards.
        """
        ...

    def close(self) -> None:
        """Return the connection to the pool if the body was read to its end, else cancel the exchange. Idempotent."""
        ...


class Received(Protocol):
    """A request whose body is complete, within its bounds, and parsed far enough to know slug and streaming.

    The dialects read no more of a call. `RequestContext` is one as soon as `receive` has run.
    """

    incoming: Incoming
    facts: HeadFacts
    body: bytes
    json: dict[str, Any]
    slug: str
    streaming: bool
    outline: Outline | None
    """Outline of the body. With one, long strings in `json` are placeholders; never in a member that a stage reads."""
    upload: Form | None
    """A form is the body: most of it has not arrived."""
    granted_cap: int | None
    """The output cap that a spend limit or balance granted, which the target is sent; None if the body's own holds."""

    @property
    def workspace_id(self) -> str: ...
