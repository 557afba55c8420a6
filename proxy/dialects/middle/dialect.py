"""The parts of a dialect, with which its calls reach targets of any dialect, and its callers read any answer.

Pure. A new dialect is one folder beside this one whose `dialect.py` has such a value, an entry in `registry.py`, and
the providers that speak it (`policy/endpoints.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from policy.billing import Tokens
from proxy.accounting.metering import AnswerReader
from proxy.dialects.counting.answer_text import TextExtractor
from proxy.dialects.finish import Roles
from proxy.dialects.middle.answer import Answer, AnswerEvent
from proxy.dialects.middle.left_out import LeftOut
from proxy.dialects.middle.request import Request
from proxy.dialects.middle.sealing import Seals
from proxy.dialects.upstream_request import HeaderFields
from proxy.dialects.usage.meters import UsageMeter
from proxy.records.messages import Incoming, Received

Json = dict[str, Any]


class StreamReader(Protocol):
    """Reads the events of one target's stream. One instance per answer."""

    @property
    def left_out(self) -> LeftOut:
        """The parts of the answer so far that no event can say."""
        ...

    def read(self, event: Json) -> list[AnswerEvent]:
        """Return what this event of the target says; nothing for an event of an unknown type.

        Raises `UpstreamCutError` for an answer too large to gather.
        """
        ...

    def done_received(self) -> list[AnswerEvent]:
        """`[DONE]` came, or only the dialect's last event is missing: the answer is complete."""
        ...

    def finished(self) -> list[AnswerEvent]:
        """Return the events that were held because more might follow: a finish that was told and not passed on."""
        ...


class StreamWriter(Protocol):
    """Writes one caller's stream. One instance per answer."""

    def write(self, events: list[AnswerEvent]) -> bytes:
        """The caller's bytes for these events; may be empty. Raises `UpstreamCutError` as readers do."""
        ...

    def finish(self) -> bytes:
        """Tell why the answer stopped, if nothing told it yet: the usage is late. Called after `Stopped`."""
        ...

    def closing(self, tokens: Tokens | None) -> bytes:
        """The bytes that end the stream. Called once, and only if `Stopped` was written.

        `tokens`: None if no usage was reported.
        """
        ...


@dataclass(slots=True)
class AnswerContext:
    """Facts about the call that a writer of answers needs. `request` has no turns any more."""

    slug: str
    """The answer's `model`."""
    request: Request
    created_s: int
    """Unix seconds from the answer's `date` header, for answers that do not tell."""
    seals: Seals
    left_out: LeftOut = field(default_factory=LeftOut)
    """The parts that the writer had no place for."""
    streams: bool | None = None
    """True if the caller asked for a stream. None: he gets one if the target sends one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One dialect: what passes unchanged in it, and its readers and writers for translations."""

    name: str
    """The name in `policy/endpoints.py`, which says what each provider speaks."""
    path: str
    """The path whose calls can be translated."""
    read_request: Callable[[Json], Request]
    """A caller's body. Raises `UntranslatableError` for what `Request` cannot hold, naming the field."""
    write_request: Callable[[Request, str, str], Json]
    """The body for a target: `(request, model, provider)`. Asks for a stream's usage.

    Raises `UntranslatableError` for what the dialect cannot say. May set `reasoning_off`.
    """
    read_answer: Callable[[Json], Answer]
    """A target's whole answer; lenient, since vendors differ."""
    new_stream_reader: Callable[[], StreamReader]
    write_answer: Callable[[Answer, AnswerContext, Tokens | None], Json]
    """A caller's whole answer. The last argument: the reported usage."""
    new_stream_writer: Callable[[AnswerContext], StreamWriter]
    new_meter: Callable[[int], UsageMeter]
    """A meter of this dialect's usage reports; the argument is the largest valid figure."""
    request_headers: Callable[[str | None, str, Incoming | None], HeaderFields]
    """The fields of a request: `(credential, provider, the caller's request)`; None for a translated one."""
    new_body_meter: Callable[[int], UsageMeter]
    """The same for an answer that is no stream and passes."""
    stream_reader: Callable[[Received, int], AnswerReader]
    """Reads a streamed answer for a caller of this dialect. The integer: the largest valid figure of a report."""
    roles: Roles
    """Roles of the frames of a target's stream."""
    texts: TextExtractor
    """Finds the model's output in an answer, to count what was delivered."""
    without_sealed: Callable[[Json, Seals], Json]
    """A caller's own body with sealed reasoning made native again, or left out: no vendor can read our seal."""
    native_reasoning: Callable[[Json], Json | None]
    """Returns what a vendor may get back of a sealed block; None if it is no reasoning of this dialect."""
    holder: str | None = None
    """The member of a stream's event that wraps model and usage, and may wrap its `error`."""
