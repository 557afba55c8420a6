"""An answer in no vendor's dialect: whole, or as the events of a stream.

Values. The events of a stream add up to the whole answer of the same content: `tests/proxy/dialects/test_streams.py`
holds that for each recorded answer, cut anywhere.
"""

from dataclasses import dataclass, field
from typing import Any

from policy.billing import NO_DETAILS, Details
from proxy.dialects.middle.left_out import LeftOut
from proxy.dialects.middle.request import AnswerPart, Reasoning

Json = dict[str, Any]

END = "end"
MAX_TOKENS = "max_tokens"
STOP_SEQUENCE = "stop_sequence"
TOOL_CALLS = "tool_calls"
REFUSED = "refused"
PAUSED = "paused"
CONTEXT_FULL = "context_full"
BROKEN = "broken"
"""Reasons why an answer ended. `BROKEN`: its server gave up; callers get a failure.

Make a `Stop` with `stops.py`: calls of tools outrank what the vendor says.
"""


@dataclass(slots=True)
class Stop:
    reason: str
    sequence: str | None = None
    """The stop sequence that matched, where the vendor names it."""
    word: str = field(default="", compare=False)
    """The vendor's word, if it is unknown here or says that the answer broke."""


@dataclass(slots=True)
class Answer:
    """A whole answer. Of several choices, the first."""

    id: str
    created_s: int
    """Unix seconds; 0 if the vendor does not tell."""
    parts: list[AnswerPart]
    stop: Stop
    logprobs: list[Json] | None = None
    """One object per token of the text: `token`, `logprob`, `bytes`, `top_logprobs`, as in Chat Completions."""
    details: Details = NO_DETAILS
    """The details of the usage, as the meter reads them."""
    left_out: LeftOut = field(default_factory=LeftOut, compare=False)
    """The parts of an answer that the values above cannot hold."""


@dataclass(slots=True)
class Started:
    """The first event."""

    id: str
    created_s: int = 0


@dataclass(slots=True)
class TextDelta:
    text: str
    logprobs: list[Json] | None = None


@dataclass(slots=True)
class RefusalDelta:
    text: str


@dataclass(slots=True)
class ReasoningDelta:
    text: str


@dataclass(slots=True)
class ReasoningEnded:
    """A block of reasoning is complete: all of it, its text included. Comes only where there is something to return."""

    reasoning: Reasoning


@dataclass(slots=True)
class ToolCallStarted:
    number: int
    """Identifies the call within the answer: 0, 1, 2 …"""
    id: str
    name: str
    custom: bool = False
    extra: Json | None = None


@dataclass(slots=True)
class ToolCallDelta:
    number: int
    text: str


@dataclass(slots=True)
class PartEnded:
    """The open part, of whatever kind, is complete, and another of the same kind is a new one. Optional."""


@dataclass(slots=True)
class DetailsSeen:
    """The details of the usage, as the meter reads them: no dialect's reader sends it."""

    details: Details


@dataclass(slots=True)
class Stopped:
    """The answer is complete, though its usage may follow. A stream without it was cut."""

    stop: Stop


@dataclass(slots=True)
class Failed:
    """The vendor reports a failure within the stream."""

    kind: str
    message: str


AnswerEvent = (
    Started
    | TextDelta
    | RefusalDelta
    | ReasoningDelta
    | ReasoningEnded
    | ToolCallStarted
    | ToolCallDelta
    | PartEnded
    | DetailsSeen
    | Stopped
    | Failed
)
