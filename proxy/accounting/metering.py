"""How an answer is read, and what is known of its tokens: what the provider reported, or what was counted.

Only shapes, and the one rule between them; who reads answers and reports and counts texts is in `dialects/`.
"""

from collections.abc import Generator
from typing import Protocol

from policy.billing import Tokens


class Reported(Protocol):
    """What a provider has said so far of an answer's cost. Only figures that are believed.

    See docs/reference/events-and-webhooks.md#token-counts.
    """

    @property
    def tokens(self) -> Tokens | None:
        """The last whole report; None while there is none, and where the last one was not believed."""
        ...

    @property
    def input(self) -> Tokens | None:
        """The input alone, where that is reported ahead of the output."""
        ...

    @property
    def rejected(self) -> str:
        """Why a report was not believed; empty where none was rejected. Holds no text of the provider's."""
        ...


class AnswerReader(Protocol):
    """One answer as its dialect reads it: upstream's bytes in, the caller's bytes out, tokens on the way."""

    @property
    def reported(self) -> Reported:
        """All that was reported so far."""
        ...

    @property
    def failed(self) -> bool:
        """Whether upstream has said, under its 2xx, that this is no answer or none any more."""
        ...

    @property
    def streams(self) -> bool:
        """Whether the caller is to have it piece by piece; what is not so is held until its end."""
        ...

    def feed(self, data: bytes) -> bytes:
        """What the caller may have of it now; what cannot be passed yet is held back."""
        ...

    def prepare_end_in_slices(self) -> Generator[None, None, None]:
        """Work to be done in slices before `end`, where an answer that is held whole is long. `end` does without."""
        ...

    def end(self) -> bytes:
        """The last bytes: the final frame of a stream, the whole of an answer that is not one."""
        ...


class DeliveredCounter(Protocol):
    """What one caller has been given: counted only if nothing is reported of it."""

    def add(self, data: bytes) -> None:
        """So much more of the answer, as the caller gets it."""
        ...

    def tokens(self, reported_input: Tokens | None) -> Tokens:
        """The output so far and the request's input, both counted; the input is `reported_input` if there is one."""
        ...


class NothingReported:
    """Of an answer that has no place for a report."""

    __slots__ = ()
    tokens: Tokens | None = None
    input: Tokens | None = None
    rejected = ""


NOTHING_REPORTED = NothingReported()


def tokens_so_far(reported: Reported, delivered: DeliveredCounter) -> Tokens:
    """What an answer costs that has begun: as reported, else as counted."""
    return reported.tokens or delivered.tokens(reported.input)
