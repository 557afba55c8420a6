"""What a provider says a call cost: its usage objects → `Tokens`. The last report wins, if it is believed.

A report is believed when each figure is a JSON number written as an integer, from 0 to a bound, and no half is missing;
otherwise it counts as not made. Never the larger of two and never a sum of two reports; an explicit zero
is zero.

See docs/reference/events-and-webhooks.md#token-counts.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from policy.billing import MAX_REPORTED_TOKENS, Tokens
from proxy.accounting.metering import Reported

Json = dict[str, Any]

_INPUT = ("prompt_tokens", "input_tokens")
_OUTPUT = ("completion_tokens", "output_tokens")
_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_CACHED = ("cached_tokens",)
_CACHED_OLDER = ("prompt_cache_hit_tokens",)
"""One compatible vendor's older spelling, beside the figures instead of in the details."""
_SPLIT = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_OUTPUT_ALONE = ("output_tokens",)


class RejectedError(Exception):
    """A report is not believed; the message names the member and what is wrong with it, never its value."""


class UsageMeter(Reported, Protocol):
    """Sees every frame or body that holds a usage object, in order."""

    def observe(self, answer: Json) -> None:
        """One parsed frame, or the whole body."""
        ...

    def observe_usage(self, usage: Json) -> None:
        """A usage object that was found without the frame around it."""
        ...


class OpenAiMeter:
    """Chat Completions, Completions, Embeddings (`prompt_tokens` …) and Responses (`input_tokens` …).

    Input includes cached input in all of them. `holder`: the member of a stream's frame that carries the usage.
    `has_output` False: of embeddings only input is reported.
    """

    __slots__ = ("_has_output", "_holder", "_most", "rejected", "tokens")
    input: Tokens | None = None

    def __init__(self, holder: str | None = None, most: int = MAX_REPORTED_TOKENS, *, has_output: bool = True) -> None:
        self.tokens: Tokens | None = None
        self.rejected = ""
        self._holder = holder
        self._most = most
        self._has_output = has_output

    def observe(self, answer: Json) -> None:
        holder = answer.get(self._holder) if self._holder else None
        usage = (holder if isinstance(holder, dict) else answer).get("usage")
        if usage is not None:
            self.observe_usage(usage)

    def observe_usage(self, usage: Json) -> None:
        try:
            tokens = self._believed(usage)
        except RejectedError as error:
            self.tokens, self.rejected = None, str(error)
        else:
            self.tokens = tokens or self.tokens

    def _believed(self, usage: Json) -> Tokens | None:
        """None where it holds no report at all."""
        _must_be_an_object(usage)
        given = _figure(usage, _INPUT, self._most)
        output = _figure(usage, _OUTPUT, self._most)
        if given is None and output is None:
            return None
        if given is None:
            raise RejectedError(f"{_INPUT[0]} is missing")
        if output is None:
            if self._has_output:
                raise RejectedError(f"{_OUTPUT[0]} is missing")
            output = 0
        cached = _cached(usage, self._most)
        return Tokens(given, output, cached if cached < given else given)


class MessagesMeter:
    """Messages: `input_tokens` excludes what was read from or written to the cache, so input is the sum of the three.

    `message_start` reports the input, `message_delta` the output, and corrects: some servers start with inclusive
    counts and send the true split at the end, so a split counts as a whole and only with its `input_tokens`. What
    `message_start` says of the output is a guess, and no report.
    """

    __slots__ = ("_most", "_output", "_split", "rejected")

    def __init__(self, most: int = MAX_REPORTED_TOKENS) -> None:
        self._split: dict[str, int] = {}
        self._output: int | None = None
        self._most = most
        self.rejected = ""

    @property
    def input(self) -> Tokens | None:
        if not self._split:
            return None
        total = sum(self._split.values())
        return Tokens(total, 0, self._split.get(_SPLIT[1], 0))

    @property
    def tokens(self) -> Tokens | None:
        given = self.input
        return given._replace(output=self._output) if given is not None and self._output is not None else None

    def observe(self, answer: Json) -> None:
        message = answer.get("message")
        usage = (message if isinstance(message, dict) else answer).get("usage")
        if usage is not None:
            self._see(usage, is_last=answer.get("type") != "message_start")

    def observe_usage(self, usage: Json) -> None:
        self._see(usage, is_last=True)

    def _see(self, usage: Json, *, is_last: bool) -> None:
        try:
            _must_be_an_object(usage)
            split = {name: count for name in _SPLIT if (count := _figure(usage, (name,), self._most)) is not None}
            output = _figure(usage, _OUTPUT_ALONE, self._most)
            if _SPLIT[0] in split:
                self._split |= split
            if not is_last:
                return
            if output is None or not self._split:
                raise RejectedError(f"{_OUTPUT_ALONE[0] if output is None else _SPLIT[0]} is missing")
            self._output = output
        except RejectedError as error:
            self._output, self.rejected = None, str(error)


def _must_be_an_object(usage: object) -> None:
    if not isinstance(usage, dict):
        raise RejectedError("usage is not an object")


def _cached(usage: Json, most: int) -> int:
    for name in _DETAILS:
        details = usage.get(name)
        if isinstance(details, dict) and (count := _figure(details, _CACHED, most)) is not None:
            return count
    return _figure(usage, _CACHED_OLDER, most) or 0


def _figure(usage: Json, names: Iterable[str], most: int) -> int | None:
    """The first of these members that is there; null is none. Raises `RejectedError` when it is not believed."""
    for name in names:
        value = usage.get(name)
        if value is None:
            continue
        if type(value) is not int:
            raise RejectedError(f"{name} is not a number written as an integer")
        if not 0 <= value <= most:
            raise RejectedError(f"{name} is not between 0 and {most}")
        return value
    return None
