"""Reads the details of a usage report: the parts of its tokens that have prices of their own, in the words of vendors.

A detail that is no JSON integer from 0 to a bound is left out; the report stands. Of several members for one detail the
largest counts.

See docs/reference/events-and-webhooks.md#how-details-are-read.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from policy.billing import MAX_TIER_CHARS, Details

Json = dict[str, Any]
Words = Mapping[str, Any]
"""The detail of each member of an object, or the words for the members of an object in it."""

INPUT_DETAILS = ("prompt_tokens_details", "input_tokens_details", "input_token_details")
OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details", "output_token_details")
AUDIO_OUTPUT = "audio_output"
IMAGE_OUTPUT = "image_output"
"""The details that all output of a path may be."""
_CACHE_WRITE = "cache_write"
_SHORT_WRITE = "cache_write_5m"
_LONG_WRITE = "cache_write_1h"
_BY_DURATION = {"ephemeral_5m_input_tokens": _SHORT_WRITE, "ephemeral_1h_input_tokens": _LONG_WRITE}
_WRITES: Words = {
    "cache_write_tokens": _CACHE_WRITE,  # OpenAI, OpenRouter
    "cache_creation_input_tokens": _CACHE_WRITE,  # Anthropic, Qwen
    "cache_creation_tokens": _CACHE_WRITE,  # LiteLLM, as the next but one
    "cache_creation": _BY_DURATION,
    "cache_creation_token_details": _BY_DURATION,
}
_INPUT = {**_WRITES, "audio_tokens": "audio_input", "image_tokens": "image_input"}
_OUTPUT = {
    "reasoning_tokens": "reasoning",
    "thinking_tokens": "reasoning",  # Anthropic
    "audio_tokens": AUDIO_OUTPUT,
    "image_tokens": IMAGE_OUTPUT,
}
_USAGE = {
    **_WRITES,
    **dict.fromkeys(INPUT_DETAILS, _INPUT),
    **dict.fromkeys(OUTPUT_DETAILS, _OUTPUT),
    "reasoning_tokens": "reasoning",  # Perplexity, as the last one
    "num_server_side_tools_used": "server_tool_calls",  # xAI
    "num_search_queries": "server_tool_calls",
}
_BY_TOOL = "server_tool_use"
"""The calls of each tool (Anthropic, OpenRouter)."""
MAX_TOOLS = 100
MAX_DETAIL = 10**10 - 1
"""The largest figure that is read, so that the bytes of an event are bounded."""
_TIER = "service_tier"


def read_details(usage: Json, most: int, tier: str) -> Details:
    """The details of a report of any dialect. `most`: the largest valid figure. `tier`: `service_tier`."""
    figures: dict[str, int] = {}
    most = min(most, MAX_DETAIL)
    _collect(usage, _USAGE, most, figures)
    if isinstance(by_tool := usage.get(_BY_TOOL), dict):
        calls = sum(count for count in islice(by_tool.values(), MAX_TOOLS) if is_figure(count, most))
        figures["server_tool_calls"] = min(max(calls, figures.get("server_tool_calls", 0)), most)
    if not figures:
        return details_of_tier(tier)
    figure = figures.get
    cache_write_1h = figure(_LONG_WRITE, 0)
    return Details(
        cache_write=max(figure(_CACHE_WRITE, 0), figure(_SHORT_WRITE, 0) + cache_write_1h),
        cache_write_1h=cache_write_1h,
        reasoning=figure("reasoning", 0),
        audio_input=figure("audio_input", 0),
        audio_output=figure(AUDIO_OUTPUT, 0),
        image_input=figure("image_input", 0),
        image_output=figure(IMAGE_OUTPUT, 0),
        server_tool_calls=figure("server_tool_calls", 0),
        service_tier=tier,
    )


def _collect(members: Json, words: Words, most: int, figures: dict[str, int]) -> None:
    """Add the details above zero that `members` tell."""
    for name in members.keys() & words.keys():
        word = words[name]
        value = members[name]
        if word.__class__ is str:
            if type(value) is int and 0 < value <= most:
                figures[word] = max(value, figures.get(word, 0))
        elif type(value) is dict:
            _collect(value, word, most, figures)


def is_figure(value: object, most: int) -> bool:
    """Return whether this is a figure that is believed."""
    return type(value) is int and 0 <= value <= most


def service_tier(*places: object) -> str:
    """The tier in the first of `places` that tells one; empty if none does."""
    for members in places:
        tier = members.get(_TIER) if isinstance(members, dict) else None
        if isinstance(tier, str) and 0 < len(tier) <= MAX_TIER_CHARS and _is_tier(tier):
            return tier
    return ""


@lru_cache(64)
def details_of_tier(tier: object) -> Details:
    """The details of a call that has no others. Cached, because most calls are such, and there are few tiers."""
    return Details(service_tier=service_tier({_TIER: tier}))


def merged(before: Details, reported: Details) -> Details:
    """A report after another one: what it does not tell, or tells as zero, replaces nothing."""
    return Details._make(late or early for early, late in zip(before, reported, strict=True))


def with_output_part(details: Details, part: str, output: int) -> Details:
    """The details of an answer whose output is all of one kind. `part`: its member, or empty for text."""
    if part == AUDIO_OUTPUT:
        return details._replace(audio_output=output)
    return details._replace(image_output=output) if part == IMAGE_OUTPUT else details


@lru_cache(64)
def _is_tier(tier: str) -> bool:
    """Return whether a price may have this tier. No other is recorded."""
    return tier.isascii() and tier.isprintable() and '"' not in tier and "\\" not in tier
