"""The protocols for reading an answer, and the rule for its tokens: as the provider reported, else as counted.

`dialects/` implements them.
"""

from collections.abc import Generator
from typing import Any, NamedTuple, Protocol

from policy.billing import COUNTED, NO_DETAILS, REPORTED, Details, Tokens
from proxy.time_slices import Uncut


class Bill(NamedTuple):
    """Everything that a call is billed by. `source`: `REPORTED`, or `COUNTED` if any figure was counted here."""

    tokens: Tokens = Tokens()
    details: Details = NO_DETAILS
    source: str = COUNTED


NO_BILL = Bill()
"""The bill of a call without an answer."""


class Reported(Protocol):
    """A provider's usage reports for one answer so far. Holds only accepted figures.

    See docs/reference/events-and-webhooks.md#token-counts.
    """

    @property
    def tokens(self) -> Tokens | None:
        """The last complete report. None if there is none or the last one was rejected."""
        ...

    @property
    def input(self) -> Tokens | None:
        """The input tokens, if the provider reports them ahead of the output."""
        ...

    @property
    def details(self) -> Details:
        """The details reported so far; without `tokens`, those that hold for counted tokens too."""
        ...

    @property
    def rejected(self) -> str:
        """Reason why a report was rejected; empty if none was. Quotes nothing from the provider."""
        ...


class AnswerReader(Protocol):
    """One answer as its dialect reads it: upstream's bytes in, the caller's bytes out, tokens on the way."""

    @property
    def reported(self) -> Reported:
        """The usage reported so far."""
        ...

    @property
    def failed(self) -> bool:
        """True if upstream reported a failure inside its 2xx answer."""
        ...

    @property
    def unknown_stop(self) -> str:
        """The vendor's word for why a translated answer stopped, if it is unknown; else empty."""
        ...

    @property
    def streams(self) -> bool:
        """True if the answer goes to the caller piece by piece. Otherwise it is held until its end."""
        ...

    @property
    def ended(self) -> bool:
        """True if the answer has ended by its own last event, even if its upstream goes on."""
        ...

    @property
    def flows(self) -> bool:
        """True if the last read brought nothing but output: the reader neither failed nor waits, nor has it ended."""
        ...

    @property
    def waits(self) -> int:
        """The number of the wait for the usage, or for the last event, that is in progress; 0 if there is none."""
        ...

    def waited(self) -> bytes:
        """A wait took `HELD_S`. Returns the bytes for the caller; the answer may have ended."""
        ...

    def feed(self, data: bytes) -> bytes:
        """Read upstream's bytes; returns the bytes for the caller. Holds back what cannot be passed on yet."""
        ...

    def prepare_end_in_slices(self) -> Generator[Uncut | None, Any, None]:
        """Work to run in slices before `end`, for a long answer that is held whole. Optional."""
        ...

    def end(self) -> bytes:
        """The last bytes: a stream's final frame, or all of an answer that is not a stream."""
        ...


class UnreadAnswer(AnswerReader, Protocol):
    """An answer of which too little came to tell its form. It is not fed."""

    begun: bytes

    def reader(self, data: bytes, *, is_all: bool = False) -> AnswerReader | None:
        """The reader of an answer that goes on so; None if more bytes are needed. Feed it `begun`.

        `is_all`: no more will come. Raises `UpstreamResetError` for an answer that cannot be read and must be.
        """
        ...


class DeliveredCounter(Protocol):
    """Counts what was delivered to the caller, for answers without a usage report."""

    @property
    def expects_usage(self) -> bool:
        """True if an answer without a usage report is worth noting."""
        ...

    @property
    def pending(self) -> list[bytes]:
        """Bytes sent to the caller that are not counted yet. The sender appends them."""
        ...

    def count(self) -> None:
        """Count the pending bytes, and drop them."""
        ...

    def tokens(self, reported_input: Tokens | None) -> Tokens:
        """Count the output so far and the request's input. `reported_input` replaces the counted input if given."""
        ...

    @property
    def media(self) -> Details:
        """The sound and the pictures in what `tokens` counted last."""
        ...


class NothingReported:
    """The report of an answer that cannot carry one."""

    __slots__ = ()
    tokens: Tokens | None = None
    input: Tokens | None = None
    details = NO_DETAILS
    rejected = ""


NOTHING_REPORTED = NothingReported()


def bill_so_far(reported: Reported, delivered: DeliveredCounter) -> Bill:
    """The bill of an answer that has begun: as reported, else as counted."""
    tokens = reported.tokens
    if tokens is not None:
        return Bill(tokens, reported.details, REPORTED)
    counted = delivered.tokens(reported.input)
    media = delivered.media
    details = reported.details._replace(audio_output=media.audio_output, image_output=media.image_output)
    if reported.input is None:
        details = details._replace(audio_input=media.audio_input, image_input=media.image_input)
    return Bill(counted, details)
