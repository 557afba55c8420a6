"""Checks the members of a request's body that the gateway acts on: their JSON types, and names that resemble theirs.

Pure. A lenient upstream may read `"stream": "true"` or `"Stream": true` as true. The gateway would not, and would meter
a different call than the upstream serves. So each of these is a 400 that names the member. Null counts as absent.

See docs/reference/inference.md#request-bodies.
"""

import unicodedata
from collections.abc import Iterable
from typing import Any

from proxy.accounting.call_bound import ANSWER_COUNTS, OUTPUT_CAPS
from proxy.refusals import MalformedRequestError

_KINDS: dict[str, type] = {
    "stream": bool,
    "stream_options": dict,
    "metadata": dict,
    **dict.fromkeys((*ANSWER_COUNTS, *OUTPUT_CAPS), int),
}
"""Types of members. `model` is missing: it is required, and checked where it is read."""
_TYPE_NAMES = {
    bool: "true or false",
    dict: "a JSON object",
    int: "a whole number, written as an integer of at most 64 bits",
}
_OUTPUT_CAPS = frozenset(OUTPUT_CAPS)
_TYPED = frozenset(_KINDS)
_GUARDED = _TYPED | {"model", "background", "container", "conversation", "previous_response_id", "thread"}
"""Names that must be spelled exactly. Those of state in the vendor's account are included: servers may fold names."""
_USAGE = "include_usage"
_GUARDED_OPTIONS = frozenset((_USAGE,))
_KNOWN_OPTIONS = frozenset((_USAGE, "include_obfuscation"))
_SENT_BY_STOCK_CLIENTS = """
    messages input prompt system instructions tools tool_choice functions function_call parallel_tool_calls
    temperature top_p top_k min_p stop stop_sequences seed suffix echo logit_bias logprobs top_logprobs
    presence_penalty frequency_penalty repetition_penalty response_format text reasoning reasoning_effort thinking
    modalities audio prediction service_tier store user safety_identifier prompt_cache_key prompt_cache_retention
    verbosity web_search_options include truncation background previous_response_id conversation max_tool_calls
    dimensions encoding_format context_management container mcp_servers output_config output_format cache_control
"""
_KNOWN = _GUARDED | frozenset(_SENT_BY_STOCK_CLIENTS.split())
"""Names that stock clients send. They resemble no guarded name and need no check. Other names are allowed too."""
_COST_GOES_BY = """
    messages input prompt prompt_embeds system instructions documents query image images mask audio file tools functions
    thinking reasoning thinking_budget prediction partial_images mcp_servers plugins search_parameters
    web_search_options max_tool_calls extra_body chat_template num_return_sequences candidate_count betas
    files attachments videos chat_template_kwargs
"""
_OF_COST = frozenset(_COST_GOES_BY.split())
"""Names that the cost of a call goes by, besides those that are guarded for every call."""
_KNOWN_OF_COST = _KNOWN | _OF_COST
MAX_MEMBERS = 1_000
"""Bound for the body and for `stream_options`. Stock clients send dozens; an unknown name costs microseconds."""
_LONGEST_NAME = 128
"""Longest name that can fold to a guarded one, unless combining marks pile up."""
_DOT_ABOVE = "\u0307"
"""The combining mark that lower-casing `İ` leaves after the `i`."""


def check_members(body: dict[str, Any]) -> int | None:
    """Return the largest of the caller's output caps; None if there is none. Below 1 a cap is how servers say "none".

    Raises `MalformedRequestError` for the first member that another server could read differently.
    """
    is_known = _KNOWN.issuperset(body)
    if not is_known and len(body) > MAX_MEMBERS:
        raise MalformedRequestError(f"the body holds more than {MAX_MEMBERS} members")
    cap = 0
    is_capped = True
    for name in _TYPED.intersection(body):
        value = body[name]
        if value is None:
            continue
        if type(value) is not _KINDS[name]:
            raise MalformedRequestError(_first_type_error(body))
        if name in _OUTPUT_CAPS:
            number: int = body[name]
            if number < 1:
                is_capped = False
            elif number > cap:
                cap = number
    if not is_known:
        _check_names(body, _KNOWN, _GUARDED, "")
    if "stream_options" in body:
        _check_options(body["stream_options"] or {})
    return cap if cap and is_capped else None


def _check_options(options: dict[str, Any]) -> None:
    if len(options) > MAX_MEMBERS:
        raise MalformedRequestError(f"stream_options holds more than {MAX_MEMBERS} members")
    usage = options.get(_USAGE)
    if usage is not None and type(usage) is not bool:
        raise MalformedRequestError(f"stream_options.{_USAGE} must be {_TYPE_NAMES[bool]}")
    if not _KNOWN_OPTIONS.issuperset(options):
        _check_names(options, _KNOWN_OPTIONS, _GUARDED_OPTIONS, "stream_options.")


def check_names_of_cost(body: dict[str, Any]) -> None:
    """Refuse names that servers may read as one that the most which a call can cost goes by. Raises as the above."""
    if not _KNOWN.issuperset(body):
        _check_names(body, _KNOWN_OF_COST, _OF_COST, "")


def _first_type_error(body: dict[str, Any]) -> str:
    """Return the first type error, always the same one of several."""
    wrong = (
        f"{name} must be {_TYPE_NAMES[kind]}"
        for name, kind in _KINDS.items()
        if body.get(name) is not None and type(body[name]) is not kind
    )
    return next(wrong)


def _check_names(names: Iterable[str], allowed: frozenset[str], guarded: frozenset[str], where: str) -> None:
    """Fold all unknown names in one string, which is cheaper than one by one; find the culprit only on a hit."""
    unknown = [name for name in names if name not in allowed and len(name) <= _LONGEST_NAME]
    if guarded.isdisjoint(_folded("\n".join(unknown)).split("\n")):
        return
    for name in unknown:
        meant = _folded(name)
        if meant in guarded:
            raise MalformedRequestError(f"{where}{name} must be spelled {where}{meant}")


def _folded(text: str) -> str:
    """Fold case, by upper and lower mapping, and Unicode's compatibility forms (NFKC)."""
    if text.isascii():
        return text.lower()
    plain = unicodedata.normalize("NFKC", text).upper().casefold()
    return unicodedata.normalize("NFKC", plain).replace(_DOT_ABOVE, "")
