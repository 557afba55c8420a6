"""Reads the usage that a provider reports into `Tokens` and `Details`. The last report counts, if it is valid.

A report is valid if input and output are both there and each figure is a JSON integer from 0 to a bound. An invalid
report withdraws the ones before it. Reports are never added up, and the larger one is not preferred. An explicit zero
is zero, but does not replace a figure of an earlier report of the same answer.

See docs/reference/events-and-webhooks.md#token-counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from policy.billing import MAX_REPORTED_TOKENS, MAX_TIER_CHARS, NO_DETAILS, Details, Tokens
from proxy.accounting.metering import Reported
from proxy.dialects.usage.details import (
    INPUT_DETAILS,
    OUTPUT_DETAILS,
    details_of_tier,
    is_figure,
    merged,
    read_details,
    service_tier,
    with_output_part,
)
from proxy.dialects.usage.server_tools import ITEM_EVENTS, ServerToolCalls

Json = dict[str, Any]

_INPUT = ("prompt_tokens", "input_tokens")
_OUTPUT = ("completion_tokens", "output_tokens")
_TOTAL = ("total_tokens",)
_CACHED = ("cached_tokens",)
_CACHED_BESIDE = ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")
"""Cached input of DeepSeek, of Moonshot, and of servers that put the words of Messages into Chat Completions."""
_DETAILED = frozenset((*INPUT_DETAILS, *OUTPUT_DETAILS))
_USUAL = frozenset(
    ("prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details")
)
_USUAL_INPUTS = frozenset(("cached_tokens", "audio_tokens", "text_tokens"))
_USUAL_OUTPUTS = frozenset(
    ("reasoning_tokens", "audio_tokens", "text_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens")
)
"""The members of nearly all reports, and of their details. Others may have a price."""
_has_usual = _USUAL.issuperset
_has_usual_inputs = _USUAL_INPUTS.issuperset
_has_usual_outputs = _USUAL_OUTPUTS.issuperset
_NO_MEMBERS: Json = {}
_WRITTEN = "cache_creation_input_tokens"
_SPLIT = ("input_tokens", "cache_read_input_tokens", _WRITTEN)
_OUTPUT_ALONE = ("output_tokens",)

METERED_MEMBERS = frozenset(("usage", "service_tier", "x_groq", "output", "item", "output_index"))
"""The members of an answer or an event that meters read, where these are scanned and not parsed."""


class InvalidUsageError(Exception):
    """A usage report is invalid. The message names the member and the fault, never the value."""


class UsageMeter(Reported, Protocol):
    """Reads the usage of an answer. It gets every frame or body that holds a usage object, in order."""

    def observe(self, answer: Json) -> None:
        """Read the usage of a parsed frame or of a whole body, if it is in its place there."""
        ...


@dataclass(frozen=True, slots=True)
class ReportPlace:
    """The place of the usage in an answer. A `usage` anywhere else is content."""

    holder: str | None = None
    """The member around it."""
    types: frozenset[str | None] | None = None
    """The types of the events that report it, None for an object without a type. None: any object reports it."""

    def holder_in(self, answer: Json) -> Json | None:
        """The object that holds the usage of a frame or a body, if it has one; None if it is not there."""
        if self.types is not None:
            kind = answer.get("type")
            if (kind is not None and not isinstance(kind, str)) or kind not in self.types:
                return None
        holder = answer if self.holder is None else answer.get(self.holder)
        return holder if isinstance(holder, dict) else None


TOP_LEVEL = ReportPlace()
_START = ReportPlace("message", frozenset(("message_start",)))
_DELTA = ReportPlace(None, frozenset(("message_delta",)))


def usual_report(holder: Json, most: int) -> tuple[Tokens, Details] | None:
    """Read a report that is as nearly all of Chat Completions are; None for any other, which `OpenAiMeter` reads.

    `OpenAiMeter` reads the same of it. It takes 20 Python calls and 500 bytecodes more: 2 µs of a governed call.
    """
    try:
        usage = holder["usage"]
        inputs = usage.get("prompt_tokens_details") or _NO_MEMBERS
        outputs = usage.get("completion_tokens_details") or _NO_MEMBERS
        if not (_has_usual(usage) and _has_usual_inputs(inputs) and _has_usual_outputs(outputs)):
            return None
        prompt = usage["prompt_tokens"]
        output = usage["completion_tokens"]
        cached = inputs.get("cached_tokens", 0)
        reasoning = outputs.get("reasoning_tokens", 0)
        if inputs.get("audio_tokens") or outputs.get("audio_tokens") or usage["total_tokens"] != prompt + output:
            return None
        if not (0 <= cached <= prompt <= most and 0 <= reasoning <= output <= most):
            return None
        if not (prompt.__class__ is output.__class__ is cached.__class__ is reasoning.__class__ is int):
            return None
        tier = holder.get("service_tier")
        if tier is not None and len(tier) > MAX_TIER_CHARS:
            return None
        details = details_of_tier(tier)
        if "x_groq" in holder and not details.service_tier:
            return None
        if reasoning:
            details = Details(reasoning=reasoning, service_tier=details.service_tier)
        return Tokens(input=prompt, output=output, cached_input=cached), details
    except (AttributeError, KeyError, TypeError):
        return None


class OpenAiMeter:
    """Chat Completions, Completions, Embeddings (`prompt_tokens` …) and Responses (`input_tokens` …).

    Input includes cached input in all of them. `most`: the largest valid figure. `has_output` is False for embeddings,
    which report only input. `output_part`: the detail that all output is, where a path has no other.
    """

    __slots__ = ("_details", "_has_output", "_most", "_output_part", "_place", "rejected", "tokens")
    input: Tokens | None = None

    def __init__(
        self,
        most: int = MAX_REPORTED_TOKENS,
        place: ReportPlace = TOP_LEVEL,
        *,
        has_output: bool = True,
        output_part: str = "",
    ) -> None:
        self.tokens: Tokens | None = None
        self._details = NO_DETAILS
        self.rejected = ""
        self._place = place
        self._most = most
        self._has_output = has_output
        self._output_part = output_part

    @property
    def details(self) -> Details:
        return self._details

    def observe(self, answer: Json) -> None:
        holder = self._place.holder_in(answer)
        if holder is not None:
            self.observe_holder(holder)

    def observe_holder(self, holder: Json) -> None:
        """Read the usage in the object that may hold it."""
        usage = _usage_of(holder)
        if usage is None:
            return
        report = usual_report(holder, self._most) if not self._output_part else None
        if report is None:
            self.observe_usage(usage, holder)
        else:
            self._accept(*report)

    def observe_usage(self, usage: Json, holder: Json) -> None:
        """Read a usage object by all the rules, one after the other. `holder`: what it is in."""
        try:
            tokens = self._validated(usage)
        except InvalidUsageError as error:
            self.tokens = None
            self._details = NO_DETAILS
            self.rejected = str(error)
            return
        if tokens is None:
            return
        details = read_details(usage, self._most, service_tier(holder, usage, holder.get("x_groq")))
        if self._has_output and (beside := _reasoning_beside(usage, tokens, details, self._most)):
            tokens = tokens._replace(output=tokens.output + beside)
            details = details._replace(reasoning=beside)
        if self._output_part and not (details.audio_output or details.image_output):
            details = with_output_part(details, self._output_part, tokens.output)
        self._accept(tokens, details)

    def _accept(self, tokens: Tokens, details: Details) -> None:
        """Keep a valid report."""
        if self.tokens is not None:
            tokens = _without_wiping(self.tokens, tokens)
            details = merged(self._details, details)
        self.tokens = tokens
        self._details = details

    def _validated(self, usage: Json) -> Tokens | None:
        """The report; None if the object has neither figure. Raises `InvalidUsageError`."""
        _must_be_an_object(usage)
        input_tokens = _figure(usage, _INPUT, self._most)
        output = _figure(usage, _OUTPUT, self._most)
        if input_tokens is None and not self._has_output:
            input_tokens = _figure(usage, _TOTAL, self._most)  # a rerank may report nothing else
        if input_tokens is None and output is None:
            return None
        if input_tokens is None:
            raise InvalidUsageError(f"{_INPUT[0]} is missing")
        if output is None:
            if self._has_output:
                raise InvalidUsageError(f"{_OUTPUT[0]} is missing")
            output = 0
        cached = _cached(usage, self._most)
        return Tokens(input=input_tokens, output=output, cached_input=cached if cached < input_tokens else input_tokens)


class ResponsesMeter(OpenAiMeter):
    """Responses: the calls of the provider's own tools are counted from the items of the output."""

    __slots__ = ("_tools",)

    def __init__(self, most: int = MAX_REPORTED_TOKENS, place: ReportPlace = TOP_LEVEL) -> None:
        super().__init__(most, place)
        self._tools = ServerToolCalls()

    @property
    def details(self) -> Details:
        reported = self._details
        calls = self._tools.number
        return reported if calls <= reported.server_tool_calls else reported._replace(server_tool_calls=calls)

    def observe(self, answer: Json) -> None:
        kind = answer.get("type")
        if isinstance(kind, str) and kind in ITEM_EVENTS:
            self._tools.observe_item(answer)
        else:
            super().observe(answer)

    def observe_holder(self, holder: Json) -> None:
        super().observe_holder(holder)
        self._tools.observe_output(holder.get("output"))


class MessagesMeter:
    """Messages: `input_tokens` excludes cache reads and cache writes, so the input is the sum of the three figures.

    `message_start` reports the input; `message_delta` reports the output and may correct the input. Some servers start
    with an inclusive count and send the true split at the end. The output figure of `message_start` is a guess and is
    ignored.
    """

    __slots__ = ("_details", "_is_whole", "_most", "_output", "_split", "rejected")

    def __init__(self, most: int = MAX_REPORTED_TOKENS, *, is_whole: bool = False) -> None:
        """`is_whole`: a body is read, whose usage is its member, and no event of a stream."""
        self._split: dict[str, int] = {}
        self._output: int | None = None
        self._details = NO_DETAILS
        self._most = most
        self._is_whole = is_whole
        self.rejected = ""

    @property
    def input(self) -> Tokens | None:
        if not self._split:
            return None
        total = sum(self._split.values())
        return Tokens(input=total, output=0, cached_input=self._split.get(_SPLIT[1], 0))

    @property
    def tokens(self) -> Tokens | None:
        reported = self.input
        return reported._replace(output=self._output) if reported is not None and self._output is not None else None

    @property
    def details(self) -> Details:
        """The details. Those of the input are known before the output is."""
        writes = self._split.get(_WRITTEN, 0)
        if writes == self._details.cache_write and self._output is not None:
            return self._details
        return self._details._replace(
            cache_write=writes,
            cache_write_1h=min(self._details.cache_write_1h, writes),
            reasoning=self._details.reasoning if self._output is not None else 0,
        )

    def observe(self, answer: Json) -> None:
        is_start = not self._is_whole and answer.get("type") == "message_start"
        place = TOP_LEVEL if self._is_whole else _START if is_start else _DELTA
        holder = place.holder_in(answer)
        if holder is not None and (usage := holder.get("usage")) is not None:
            self._see(usage, holder, is_last=not is_start)

    def _see(self, usage: Json, holder: Json, *, is_last: bool) -> None:
        try:
            _must_be_an_object(usage)
            output = _figure(usage, _OUTPUT_ALONE, self._most)
            details = read_details(usage, self._most, service_tier(usage, holder))
            self._take_input(usage, details.cache_write)
            self._details = details if self._details is NO_DETAILS else merged(self._details, details)
            if not is_last:
                return
            if output is None or not self._split:
                raise InvalidUsageError(f"{_OUTPUT_ALONE[0] if output is None else _SPLIT[0]} is missing")
            output = output or self._output or 0
            self._output = output + (details.reasoning if details.reasoning > output else 0)
        except InvalidUsageError as error:
            self._output = None
            self.rejected = str(error)

    def _take_input(self, usage: Json, cache_write: int) -> None:
        """Take the split of the input. Zeros of a later one count only if other figures have taken their tokens over.

        `cache_write`: all writes, which may be told by their duration alone.
        """
        split = {name: count for name in _SPLIT if (count := _figure(usage, (name,), self._most)) is not None}
        if _SPLIT[0] not in split:
            return
        if cache_write:
            split[_WRITTEN] = cache_write
        has_taken_over = sum(split.values()) >= sum(self._split.values())
        self._split |= {name: count for name, count in split.items() if count or has_taken_over}


def _usage_of(holder: Json) -> Any:
    """The usage of a frame or a body. Some vendors have it in a chunk's choice (Moonshot) or in `x_groq` (Groq)."""
    usage = holder.get("usage")
    if usage is not None:
        return usage
    choices = holder.get("choices")
    for inner in (holder.get("x_groq"), *(choices if isinstance(choices, list) else ())):
        if isinstance(inner, dict) and isinstance(inner.get("usage"), dict):
            return inner["usage"]
    return None


def _without_wiping(before: Tokens | None, reported: Tokens) -> Tokens:
    """A report after another one: zeros in it replace nothing."""
    if before is None:
        return reported
    input_tokens = reported.input or before.input
    return Tokens(
        input=input_tokens,
        output=reported.output or before.output,
        cached_input=min(reported.cached_input or before.cached_input, input_tokens),
    )


def _must_be_an_object(usage: object) -> None:
    if not isinstance(usage, dict):
        raise InvalidUsageError("usage is not an object")


def _cached(usage: Json, most: int) -> int:
    for name in INPUT_DETAILS:
        details = usage.get(name)
        if isinstance(details, dict) and (count := _figure(details, _CACHED, most)) is not None:
            return count
    return _figure(usage, _CACHED_BESIDE, most) or 0


def _reasoning_beside(usage: Json, tokens: Tokens, details: Details, most: int) -> int:
    """The reasoning that the output does not include.

    No part is larger than the whole: then it is beside. Otherwise the total tells: it includes the reasoning once more
    (xAI, Vertex), or is more than input and output in a report without any details (Gemini).
    """
    reasoning = details.reasoning
    total: Any = usage.get(_TOTAL[0])
    if reasoning > tokens.output:
        return reasoning
    rest = total - tokens.input - tokens.output if is_figure(total, most) else 0
    if reasoning:
        return reasoning if rest >= reasoning else 0
    return max(0, rest) if tokens.output and _DETAILED.isdisjoint(usage) else 0


def _figure(usage: Json, names: Iterable[str], most: int) -> int | None:
    """The first of these members that is present and not null. Raises `InvalidUsageError` if it is not valid."""
    for name in names:
        value = usage.get(name)
        if value is None:
            continue
        if type(value) is not int:
            raise InvalidUsageError(f"{name} is not a number written as an integer")
        if not 0 <= value <= most:
            raise InvalidUsageError(f"{name} is not between 0 and {most}")
        return value
    return None
