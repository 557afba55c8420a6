"""The members of a request's body on which the gateway acts: their JSON types, and names that only resemble theirs.

Pure. A server behind us may read `"stream": "true"` or `"Stream": true` as true. We would not, and would meter another
call than it serves. So each is a 400 that names the member. Null counts as absent.

See docs/reference/inference.md#request-bodies.
"""

import unicodedata
from collections.abc import Iterable
from typing import Any

from proxy.refusals import MalformedRequestError

_TYPES: tuple[tuple[str, type], ...] = (
    ("stream", bool),
    ("stream_options", dict),
    ("metadata", dict),
    ("n", int),
    ("max_tokens", int),
    ("max_completion_tokens", int),
    ("max_output_tokens", int),
)
"""`model` is checked where it is read: it alone is required."""
_WORDS = {bool: "true or false", dict: "a JSON object", int: "a whole number, written as an integer of at most 64 bits"}
_ACTED_ON = frozenset(("model", *(name for name, _ in _TYPES)))
_USAGE = "include_usage"
_OPTIONS = frozenset((_USAGE,))
_KNOWN_OPTIONS = frozenset((_USAGE, "include_obfuscation"))
_SENT_BY_STOCK_CLIENTS = """
    messages input prompt system instructions tools tool_choice functions function_call parallel_tool_calls
    temperature top_p top_k min_p stop stop_sequences seed suffix echo best_of logit_bias logprobs top_logprobs
    presence_penalty frequency_penalty repetition_penalty response_format text reasoning reasoning_effort thinking
    modalities audio prediction service_tier store user safety_identifier prompt_cache_key prompt_cache_retention
    verbosity web_search_options include truncation background previous_response_id conversation max_tool_calls
    dimensions encoding_format context_management container mcp_servers output_config output_format cache_control
"""
_KNOWN = _ACTED_ON | frozenset(_SENT_BY_STOCK_CLIENTS.split())
"""Names that stock clients send. They resemble no other name, so they need no closer look. Any name may be sent."""
MAX_MEMBERS = 1_000
"""Of the body, and of its `stream_options`. Stock clients send some dozens; each unknown name costs microseconds."""
_LONGEST_NAME = 128
"""No longer name folds to one of ours, except by piling up combining marks."""
_DOT_ABOVE = "\u0307"
"""What lower-casing leaves beside the `i` of `İ`."""


def check_members(body: dict[str, Any]) -> None:
    """Raise `MalformedRequestError` for the first member whose type or name another server could read otherwise."""
    if len(body) > MAX_MEMBERS:
        raise MalformedRequestError(f"the body holds more than {MAX_MEMBERS} members")
    for name, kind in _TYPES:
        value = body.get(name)
        if value is not None and type(value) is not kind:
            raise MalformedRequestError(f"{name} must be {_WORDS[kind]}")
    if not _KNOWN.issuperset(body):
        _check_names(body, _KNOWN, _ACTED_ON, "")
    options = body.get("stream_options")
    if options:
        if len(options) > MAX_MEMBERS:
            raise MalformedRequestError(f"stream_options holds more than {MAX_MEMBERS} members")
        usage = options.get(_USAGE)
        if usage is not None and type(usage) is not bool:
            raise MalformedRequestError(f"stream_options.{_USAGE} must be {_WORDS[bool]}")
        if not _KNOWN_OPTIONS.issuperset(options):
            _check_names(options, _KNOWN_OPTIONS, _OPTIONS, "stream_options.")


def _check_names(names: Iterable[str], known: frozenset[str], acted_on: frozenset[str], where: str) -> None:
    """All unknown names are folded at once, which costs less than one by one."""
    unknown = [name for name in names if name not in known and len(name) <= _LONGEST_NAME]
    if acted_on.isdisjoint(_folded("\n".join(unknown)).split("\n")):
        return
    for name in unknown:
        meant = _folded(name)
        if meant in acted_on:
            raise MalformedRequestError(f"{where}{name} must be spelled {where}{meant}")


def _folded(text: str) -> str:
    """Without regard to case, by either mapping, and to Unicode's compatible forms."""
    if text.isascii():
        return text.lower()
    plain = unicodedata.normalize("NFKC", text).upper().casefold()
    return unicodedata.normalize("NFKC", plain).replace(_DOT_ABOVE, "")
