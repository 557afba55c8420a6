"""The request's context, which the stages fill, and the values that prove that a stage ran.

`authenticate` returns the `Identified`, `admit` the `Admitted`, `dispatch` the `Answering`, `relay` the `Answered`.
Only `admit` constructs `Admitted`, and `dispatch` accepts nothing else, so no call goes upstream unmetered.
The protocols `Incoming`, `Outgoing` and `UpstreamAnswer` hide the servers and clients from the stages.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from policy.billing import Tokens
from policy.hosts import Reach
from policy.limits.settlement import Estimate
from proxy.accounting.journaled_call import GoOn, JournaledCall, UnwrittenRecord
from proxy.accounting.metering import AnswerReader, DeliveredCounter
from proxy.accounting.reservations import Taken
from proxy.capacity.call_load import Load
from proxy.dialects.attempt import Attempt
from proxy.directory_values import Forwarding, Identified, Shape, SlugRoute
from proxy.forms.upload import Form, Upload
from proxy.head_facts import HeadFacts
from proxy.json_text.large_json import Outline
from proxy.json_text.segmented_body import RequestBody
from proxy.replicas.direct_call import DirectCall
from proxy.replicas.replica_calls import ReplicaCall

Headers = Sequence[tuple[str, str]]

MODELS_PATH = "/v1/models"


class Incoming(Protocol):
    """One request from the HTTP server. Its body is not read yet."""

    method: str
    received_at: float
    """When the head was complete: monotonic seconds (`time.perf_counter`)."""
    declared_bytes: int | None
    """`content-length`, which is not among the fields. None if the body is chunked or there is none."""
    kept: dict[str, Any]
    """What stages computed from the head alone, each under its own name. Requests with the same head may share it, so
    it depends on nothing else: not on `declared_bytes`, the time or policy. A server bounds how long it lasts."""
    whole: bytes | None
    """All of the body, if it came with the head: take it and set None, or `read` it."""
    body_wait_s: float
    """Time spent waiting for the body."""
    fault: Exception | None
    """Why the bytes were not a valid request; then no other field is meaningful. None for a valid request."""

    @property
    def repeats(self) -> bool:
        """Another request had this head before: what is kept for it will be of use."""
        ...

    @property
    def target(self) -> str:
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

    started: bool
    """Whether the head was sent. From then on, a failure can only cut the response."""
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
        """Have `finish` send the last bytes, up to `size`, when the call's close record is written or refused.

        The handling task may go; the next request waits. False: there may be no room, so wait for record and room.
        """
        ...

    def abort(self) -> None:
        """Close the transport, so that the caller notices the cut response."""
        ...


@dataclass(slots=True)
class UpstreamCall:
    """One request to an upstream, ready to send. The client adds `host`, `content-length` and `x-request-id`."""

    url: str
    """scheme://host[:port]/path?query"""
    method: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: RequestBody
    deadline: float
    """When the last byte must have arrived: `time.perf_counter` seconds."""
    idle_timeout_s: float
    """How long the upstream may be silent after its head."""
    reach: Reach
    upload: Upload | None = None
    """If set, it is the body, in place of `body`."""
    record: JournaledCall | None = None
    """If set, the client must not send a byte before it is written."""
    waiting_since: float = 0.0
    """Since when the call waits for its upstream. The client sets it anew if it waited for `record` last."""
    request_id: str = ""
    """"" if there is none, or if it is among `headers`."""
    lines: bytes = b""
    """`headers` as `field_lines` encodes them, if a call like this was sent before; the client need not do it again."""
    written: bool = False
    """Set by the client with the first byte that it writes."""


class AnswerFields(NamedTuple):
    """What the fields of an upstream's answer say."""

    content_type: str
    encoded: bool
    """The body is compressed, so it cannot be read, nor searched for secrets."""
    returned: Headers
    """Those that go to the caller, without those that the upstream declares hop-by-hop."""
    codings: tuple[str, ...]
    """The transfer codings, in lower case, one for each field."""
    longest: int
    """How many characters the longest value in `returned` has."""


class UpstreamAnswer(Protocol):
    """An upstream's response. The head has arrived; the body has not."""

    status: int
    ended: bool
    """Whether the last read is known to have been the last one."""
    whole: bytes | None
    """All of the body, if it came with the head. It can be read all the same."""
    taking_s: float
    """How long the `take` of `pour` has run in all: that is no wait for the upstream."""

    @property
    def fields(self) -> AnswerFields:
        """What its head says."""
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
        """Have a `pour` in progress return False, as for lack of room."""
        ...

    def let_end(self) -> None:
        """What was read is all of the answer: discard the rest, and keep the connection if it ends within a second.

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
    """If set, long strings in `json` are placeholders; never in a member that a stage reads."""
    upload: Form | None
    """If set, it is the body: most of it has not arrived."""

    @property
    def workspace_id(self) -> str: ...


@dataclass(slots=True)
class Admitted:
    """Every limit up the group tree admitted the call. Constructed by `stages/admit.py` only; settled exactly once."""

    identified: Identified
    route: SlugRoute
    taken: Taken
    event_key: str
    """The billing event's idempotency key, a ULID."""
    estimate: Estimate
    """Tokens that the call reserves of TOKEN limits. Never billed."""


@dataclass(slots=True)
class Answering:
    """The head of the upstream's response has arrived; its body has not."""

    admitted: Admitted
    upstream: UpstreamAnswer
    credential: str | None
    """Never passed on in a response."""
    url: str
    """Where the request was sent. Its host is never passed on either."""


@dataclass(slots=True)
class Answered:
    """The response, except for its last bytes: they leave once the call is journaled. A refusal is one, too.

    `status`, `headers` and `reason` matter only if no head was sent before.
    """

    status: int
    headers: Headers
    final: bytes
    reason: str = ""
    """An error's message: some clients show only the status line's reason phrase.

    See docs/reference/inference.md#errors.
    """


@dataclass(slots=True, eq=False, repr=False)
class RequestContext:
    """One request, and what happened to it so far. `settle` reads it, however the request ended.

    Fields without a default are unset until their stage has run: to read one before raises `AttributeError`.
    """

    incoming: Incoming
    outgoing: Outgoing
    facts: HeadFacts
    """What follows from the request's head alone."""
    request_id: str
    load: Load | None = None
    """What the request takes of the worker's capacity."""
    identified: Identified | None = None
    body: bytes = field(init=False)
    """This and the next seven are set by `receive`: see `Received`."""
    json: dict[str, Any] = field(init=False)
    slug: str = field(init=False)
    streaming: bool = field(init=False)
    outline: Outline | None = field(init=False)
    output_cap: int | None = field(init=False)
    """The largest of the caller's output caps: `max_tokens: 1` beside a larger cap must not win (litellm#34223)."""
    answers: int = field(init=False)
    """How many answers the call may generate, each up to the cap."""
    metadata: Mapping[str, Any] | None = field(init=False)
    """The billing event's `requestMetadata`."""
    upload: Form | None = None
    """Set if the body is sent while it arrives."""
    route: SlugRoute | None = None
    attempt: Attempt = field(init=False)
    """How the call is put to its target. Dispatch replaces it where the target does not speak that dialect."""
    shape: Shape | None = None
    """None unless a call with this head and slug was sent before."""
    forwarding: Forwarding | None = field(init=False)
    """None unless a call like this was sent before, by whomever."""
    notice: str = ""
    """The attempt's `notice`."""
    admitted: Admitted | None = None
    upstream: UpstreamAnswer | None = None
    """An answer whose head has arrived without all of its body: to be closed in the end."""
    direct: DirectCall | None = None
    """Set if this is a direct call, once its model was found."""
    replica_call: ReplicaCall | None = None
    rate_limit_lines: str = ""
    """The `x-ratelimit-*` fields, encoded."""
    journaled: JournaledCall | None = None
    """Set once the journal has, or is about to write, the call's open record."""
    dispatched: bool = False
    """A byte of the request was written upstream, so it counts as a request. So does a token count answered here."""
    ended: bool = False
    """The call was journaled as ended, and settled."""
    billed: Tokens | None = None
    """Set when the call has ended."""
    reported: Tokens | None = None
    """What the provider reported with an answer that came whole. Of any other, `reader` knows it."""
    reader: AnswerReader | None = None
    delivered: DeliveredCounter | None = None
    answered: bool = False
    """Part of an answer, not of an error, reached the caller or is about to."""
    status: int = 0
    """For metrics and logs. May be 499 or 504 although the head said 200."""
    cause: str = ""
    upstream_s: float = 0.0
    """Time spent waiting for the upstream."""
    first_byte_s: float | None = None
    request_bytes: int = 0

    @property
    def workspace_id(self) -> str:
        assert self.identified is not None  # nothing is asked for it before
        return self.identified.key.workspace_id

    def use_attempt(self, attempt: Attempt) -> None:
        """Put the call to its target by this attempt from now on."""
        self.attempt, self.notice = attempt, attempt.notice


class CallerGoneError(Exception):
    """The caller disconnected (499)."""


class UpstreamError(Exception):
    """An exchange with an upstream failed; the subclass says how. The text never names a host or a credential."""


class UpstreamUnreachableError(UpstreamError):
    """No connection (503): refused, not resolved, TLS failed, timed out, or an address that may not be dialled."""


class UpstreamResetError(UpstreamError):
    """The connection was reset or closed before the head, or the response was not HTTP (502)."""


class UpstreamCutError(UpstreamError):
    """The response broke off after its head (502)."""


class UpstreamTimeoutError(UpstreamError):
    """The deadline passed, or a stream was silent for longer than the idle timeout (504)."""


class PolicyUnavailableError(Exception):
    """No policy to decide by (503): there is no policy replica yet, or control could not confirm an unknown key."""


class CountersUnavailableError(Exception):
    """Redis is unreachable, and limits fail closed (503)."""


class JournalUnavailableError(Exception):
    """The journal cannot record the call (503): the disk is full, or the backlog is at its bound."""
