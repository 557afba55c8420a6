"""The members that whole and streamed Chat Completions answers have in common.

Pure.
"""

from collections.abc import Iterable

import orjson

from policy.billing import Details, Tokens
from proxy.dialects.middle.answer import (
    CONTEXT_FULL,
    END,
    MAX_TOKENS,
    PAUSED,
    REFUSED,
    STOP_SEQUENCE,
    TOOL_CALLS,
    Stop,
)
from proxy.dialects.middle.reading import Json
from proxy.dialects.middle.request import Tool

ID_PREFIX = "chatcmpl-"
_FINISH_REASONS = {
    END: "stop",
    MAX_TOKENS: "length",
    STOP_SEQUENCE: "stop",
    TOOL_CALLS: "tool_calls",
    REFUSED: "content_filter",
    PAUSED: "stop",
    CONTEXT_FULL: "length",
}


def answer_id(vendor_id: str, created_s: int) -> str:
    """The vendor's id, with the dialect's prefix if it has another. `created_s` serves where the vendor gives none."""
    return vendor_id if vendor_id.startswith(ID_PREFIX) else f"{ID_PREFIX}{vendor_id or created_s}"


def finish_reason(stop: Stop, *, has_refusal: bool) -> str:
    """`has_refusal`: the answer has a `refusal`; OpenAI then says `stop`."""
    return "stop" if has_refusal else _FINISH_REASONS.get(stop.reason, "stop")


def written_usage(tokens: Tokens, details: Details) -> Json:
    """The usage. Of the details, the usual ones always; others if there are any."""
    others = {"cache_write_tokens": details.cache_write, **_media(details.audio_input, details.image_input)}
    prompt_details = {"cached_tokens": tokens.cached_input} | _above_zero(others)
    media = _media(details.audio_output, details.image_output)
    return {
        "prompt_tokens": tokens.input,
        "completion_tokens": tokens.output,
        "total_tokens": tokens.total,
        "prompt_tokens_details": prompt_details,
        "completion_tokens_details": {"reasoning_tokens": details.reasoning} | _above_zero(media),
    }


def _media(audio: int, image: int) -> dict[str, int]:
    return {"audio_tokens": audio, "image_tokens": image}


def _above_zero(figures: dict[str, int]) -> dict[str, int]:
    return {name: figure for name, figure in figures.items() if figure}


def custom_names(tools: Iterable[Tool]) -> frozenset[str]:
    """The caller's tools that take plain text, which a target without such tools was given as functions."""
    return frozenset(tool.name for tool in tools if tool.custom is not None)


def custom_input(arguments: str) -> str:
    """Return the plain text in the arguments of a function in place of a custom tool; all of them if there is none."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments
