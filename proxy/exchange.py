"""The values between the steps: Arrived → Identified → Received → Routed → Admitted → Answering → Answered.

Each stage's output type is the proof that the stage ran: `admit` alone makes an `Admitted`, and `dispatch` takes
nothing else, so the type checker shows that nothing goes upstream unmetered. Also here: the two ends of the wire
as the stages see them (`Incoming`, `Outgoing`, `UpstreamAnswer`), so that no stage knows which server carries it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from policy.billing import Tokens
from policy.credentials import MODEL_CALLERS, SLUG_CALLERS, KeyKind
from policy.groups import Group
from policy.hosts import Reach
from policy.limits.effective import Plan
from policy.snapshot import EndpointRow, KeyRow, WorkspaceRow
from proxy.accounting.metering import AnswerReader, DeliveredCounter
from proxy.accounting.reservations import Taken
from proxy.capacity.call_load import Load
from proxy.capacity.model_replicas import ReplicaCall
from proxy.json_text.large_json import Outline
from proxy.json_text.segmented_body import RequestBody

Headers = Sequence[tuple[str, str]]

MODELS_PATH = "/v1/models"


class Incoming(Protocol):
    """One request as the listener hands it over; the body is not read yet."""

    method: str
    target: str
    """Path and query as sent (raw, still percent-encoded)."""
    received_at: float
    """Monotonic seconds (`time.perf_counter`) at which the head was complete."""
    declared_bytes: int | None
    """`content-length`; None when the body is chunked or there is none."""
    body_wait_s: float
    """How long the body was waited for."""
    fault: Exception | None
    """What came is no request, and this says why; then nothing else here means anything."""

    @property
    def headers(self) -> Headers:
        """All header fields in order, names in lower case, values as sent."""
        ...

    def header(self, name: str) -> str | None:
        """The first value of one field; `name` in lower case. Cheaper than a walk over `headers`."""
        ...

    def header_values(self, name: str) -> Sequence[str]:
        """All values of one field, in order."""
        ...

    async def read(self) -> bytes:
        """The body's next bytes as they come; b"" at its end.

        Sends `100 Continue` first where the caller expects it (RFC 9110 10.1.1). Raises `MalformedBodyError` for a
        broken chunk, `SlowBodyError` for a body that does not come.
        """
        ...


class Outgoing(Protocol):
    """The way back to the caller. A caller that went away shows as CancelledError of the handling task.

    `write`, `room` and `finish` raise `CallerGoneError` when they are the first to notice.
    """

    started: bool
    """Whether the head has been sent: from then on a failure can only end the stream."""
    sent_bytes: int
    """Of the body, so far."""
    room_wait_s: float
    """How long the caller's slowness was waited for."""

    def start(self, status: int, headers: Headers, lines: str = "", reason: str = "") -> None:
        """The head; it leaves with the first bytes. Framing headers are the listener's to add.

        `reason`: any text for the status line, made fit for it by the listener; "" is the status's own.
        `lines`: more fields, ours and so known to be sound, as they go on the wire: each `name: value` and CRLF.
        """
        ...

    def write(self, data: bytes) -> bool:
        """Send now (b"" sends the head alone). False: there is no room for more, so wait for `room` (backpressure)."""
        ...

    async def room(self) -> None:
        """Returns when the caller has taken enough of what was written."""
        ...

    async def finish(self, data: bytes = b"") -> None:
        """The last bytes and the end of the message."""
        ...

    def abort(self) -> None:
        """Close the transport, so that the caller sees that the answer is cut."""
        ...


@dataclass(slots=True)
class UpstreamCall:
    """One request to an upstream, ready for the wire. The client adds `host` and `content-length` itself, and sets
    `written` with the first byte that it writes."""

    url: str
    """scheme://host[:port]/path?query"""
    method: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: RequestBody
    deadline: float
    """`time.perf_counter` seconds by which the last byte must be here."""
    idle_timeout_s: float
    """How long the upstream may be silent once its head is here."""
    reach: Reach
    written: bool = False


class UpstreamAnswer(Protocol):
    """An upstream's answer whose head is here and whose body is not."""

    status: int
    headers: Headers
    """Names in lower case."""
    ended: bool
    """Whether it is known that nothing follows what was read last; the next read would say so too."""

    async def read(self) -> bytes:
        """The next bytes as they come; b"" at the end. Raises `UpstreamCutError` or `UpstreamTimeoutError`."""
        ...

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        """Give `take` what has come and, at once, what comes: to the end (True), or until it says that it has no room.

        `ended` tells whether that was all. Raises what `read` does, and what `take` raises.
        """
        ...

    def close(self) -> None:
        """Give the connection back when the body was read to its end; cancel the exchange otherwise. Idempotent."""
        ...


class Purpose(Enum):
    """What a path is for, and so which kind of key may use it."""

    INFER = "infer", SLUG_CALLERS
    LIST = "list", SLUG_CALLERS
    INVOKE = "invoke", MODEL_CALLERS
    UNKNOWN = "unknown", tuple(KeyKind)

    def __init__(self, _name: str, users: tuple[KeyKind, ...]) -> None:
        """The name only tells members apart that have the same users."""
        self.users = users


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """All that policy knows of who holds a key. None: the row is gone, or there was never to be one."""

    key: KeyRow
    workspace: WorkspaceRow | None
    group: Group | None


@dataclass(frozen=True, slots=True)
class SlugRoute:
    """Where a slug leads for a group, and what binds its calls there."""

    endpoint: EndpointRow
    plan: Plan


@dataclass(slots=True)
class Arrived:
    """The request's head is sound; nothing of its body was read, and nothing is known of the caller."""

    incoming: Incoming
    request_id: str
    path: str
    """Without the query."""
    purpose: Purpose


@dataclass(slots=True)
class Identified:
    """The caller is known: a live key of a kind that may use this path, of a workspace that may call."""

    arrived: Arrived
    key: KeyRow
    workspace: WorkspaceRow
    group: Group | None
    """The key's group: set for federated keys, and so on all slug paths."""


@dataclass(slots=True)
class Received:
    """The request is whole, bounded and parsed just enough to know slug and streaming."""

    incoming: Incoming
    request_id: str
    path: str
    body: bytes
    json: dict[str, Any]
    slug: str
    streaming: bool
    metadata: Mapping[str, Any] | None = None
    """The billing event's `requestMetadata`."""
    outline: Outline | None = None
    """Where it is there, `json` has placeholders for long strings; never in a member that a stage reads."""


@dataclass(slots=True)
class Routed:
    """The slug leads somewhere and this caller's group may call it."""

    identified: Identified
    received: Received
    endpoint: EndpointRow
    external_entity_id: str
    plan: Plan
    translation: dict[str, Any] | None
    """The request in the target's dialect, where that is not the caller's; until it is sent."""


@dataclass(slots=True)
class Admitted:
    """Every limit up the tree has said yes. Made by `stages/admit.py` alone; settled exactly once."""

    routed: Routed
    taken: Taken
    event_key: str
    """The billing event's idempotency key, a ULID."""
    estimate: Tokens
    """What is reserved of TOKEN limits, and never billed."""


@dataclass(slots=True)
class Answering:
    """The upstream has answered with a head; its body is still to come."""

    admitted: Admitted
    upstream: UpstreamAnswer
    credential: str | None
    url: str
    """Where it was asked: its host is, with the credential, what relay keeps out of the answer."""


@dataclass(slots=True)
class Answered:
    """All is said but the last bytes, which leave once the books are closed.

    A refusal is one too. `status`, `headers` and `reason` count only where nothing was sent before.
    """

    status: int
    headers: Headers
    final: bytes
    reason: str = ""
    """An error's message: some clients show the status line's reason phrase and nothing else.

    See docs/reference/inference.md#errors.
    """


@dataclass(slots=True)
class Call:
    """One request on its way: what is known so far, what it holds and what became of it, so that its end can be told
    and paid for however it came."""

    incoming: Incoming
    outgoing: Outgoing
    arrived: Arrived | None = None
    identified: Identified | None = None
    routed: Routed | None = None
    admitted: Admitted | None = None
    rate_lines: str = ""
    """The `x-ratelimit-*` fields as they go on the wire."""
    opened: bool = False
    dispatched: bool = False  # a byte of it was written upstream: it counts as a request
    booked: bool = False
    billed: Tokens | None = None
    """Once it is booked."""
    reader: AnswerReader | None = None
    delivered: DeliveredCounter | None = None
    upstream: UpstreamAnswer | None = None
    replica_call: ReplicaCall | None = None
    load: Load | None = None
    """What it takes of the worker, once it has entered."""
    status: int = 0
    """What metrics and logs say: 499 and 504 after a 200 head included."""
    cause: str = ""
    answered: bool = False
    """Some of an answer, not of an error, reached the caller or is about to."""
    upstream_s: float = 0.0
    first_byte_s: float | None = None
    request_bytes: int = 0


class CallerGoneError(Exception):
    """Client closed connection"""


class UpstreamError(Exception):
    """An exchange with an upstream failed; the subclass says how. Its text never names a host or a credential."""


class UpstreamUnreachableError(UpstreamError):
    """Refused, not resolved, TLS failed, connect timed out, or an address that may not be dialled (503)."""


class UpstreamResetError(UpstreamError):
    """The connection was reset or closed before the head, or what came was not HTTP (502)."""


class UpstreamCutError(UpstreamError):
    """The answer broke off after its head."""


class UpstreamTimeoutError(UpstreamError):
    """The deadline passed (504), or a stream fell silent for longer than the idle timeout."""


class PolicyUnavailableError(Exception):
    """There is no policy to answer from (503): no replica yet, or control could not confirm an unknown key."""


class CountersUnavailableError(Exception):
    """Redis is out of reach and limits fail closed (503)."""


class JournalUnavailableError(Exception):
    """The journal cannot take the call (503): the disk is full, or the backlog is at its bound."""
