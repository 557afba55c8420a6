"""What a provider says a call cost: its usage objects → `Tokens`. The last authoritative report wins.

Never the larger of two and never a sum of two reports; an explicit zero is zero; what is no whole number is no report.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from policy.billing import Tokens

Json = dict[str, Any]

_LARGEST = 2**53 - 1
_INPUT = ("prompt_tokens", "input_tokens")
_OUTPUT = ("completion_tokens", "output_tokens")
_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_SPLIT = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class Meter(Protocol):
    """Sees every frame or body that holds a usage object, in order."""

    @property
    def tokens(self) -> Tokens | None: ...

    def see(self, answer: Json) -> None:
        """One parsed frame, or the whole body."""
        ...

    def see_usage(self, usage: Json) -> None:
        """A usage object that was found without the frame around it."""
        ...


class OpenAiMeter:
    """Chat Completions, Completions, Embeddings (`prompt_tokens` …) and Responses (`input_tokens` …).

    Input includes cached input in all of them. `holder`: the member of a stream's frame that carries the usage.
    """

    __slots__ = ("_holder", "tokens")

    def __init__(self, holder: str | None = None) -> None:
        self.tokens: Tokens | None = None
        self._holder = holder

    def see(self, answer: Json) -> None:
        holder = answer.get(self._holder) if self._holder else None
        usage = (holder if isinstance(holder, dict) else answer).get("usage")
        if isinstance(usage, dict):
            self.see_usage(usage)

    def see_usage(self, usage: Json) -> None:
        given = _first(usage, _INPUT)
        output = _first(usage, _OUTPUT)
        if given is None and output is None:
            return
        total = given or 0
        cached = _cached(usage) or 0
        self.tokens = Tokens(total, output or 0, cached if cached < total else total)


class MessagesMeter:
    """Messages: `input_tokens` excludes what was read from or written to the cache, so input is the sum of the three.

    `message_start` reports first, `message_delta` corrects: some servers start with inclusive counts and send the true
    split at the end, so a split counts as a whole and only with its `input_tokens`.
    """

    __slots__ = ("_output", "_split", "_streamed_bytes", "closed")

    def __init__(self) -> None:
        self._split: dict[str, int] = {}
        self._output: int | None = None
        self._streamed_bytes = 0
        self.closed = False

    @property
    def tokens(self) -> Tokens | None:
        if self._output is None and not self._split:
            return None
        total = sum(self._split.values())
        return Tokens(total, self._output_so_far(), min(self._split.get(_SPLIT[1], 0), total))

    def see(self, answer: Json) -> None:
        message = answer.get("message")
        usage = (message if isinstance(message, dict) else answer).get("usage")
        if isinstance(usage, dict):
            self.see_usage(usage)
            self.closed = self.closed or answer.get("type") == "message_delta"

    def see_usage(self, usage: Json) -> None:
        if _count(usage.get("input_tokens")) is not None:
            self._split |= {name: n for name in _SPLIT if (n := _count(usage.get(name))) is not None}
        output = _count(usage.get("output_tokens"))
        self._output = self._output if output is None else output

    def streamed(self, size_bytes: int) -> None:
        """So much text has gone out: a caller who leaves before `message_delta` is billed for it (4 bytes a token)."""
        self._streamed_bytes += size_bytes

    def _output_so_far(self) -> int:
        reported = self._output or 0
        return reported if self.closed else max(reported, -(-self._streamed_bytes // 4))


def _cached(usage: Json) -> int | None:
    for name in _DETAILS:
        details = usage.get(name)
        if isinstance(details, dict) and (count := _count(details.get("cached_tokens"))) is not None:
            return count
    return _count(usage.get("prompt_cache_hit_tokens"))  # one compatible vendor's older spelling


def _first(usage: Json, names: Iterable[str]) -> int | None:
    """The first of these members that is a count, if any is."""
    for name in names:
        value = usage.get(name)
        if type(value) is int and 0 <= value <= _LARGEST:
            return value
    return None


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= _LARGEST else None
