"""Writes the output cap that was granted into a body that passes: the caller's caps lowered, or one added.

HARD spend limits and balances grant one. Pure. A translated body has it already: it is written from
`Request.max_output_tokens`. See `target_request.py`.
"""

from collections.abc import Mapping
from typing import Any

from policy.endpoints import VENDOR_B
from proxy.accounting.call_bound import OUTPUT_CAPS

_NAMES = frozenset(OUTPUT_CAPS)
_COMMON = "max_tokens"
_VENDORS = "max_completion_tokens"
_CAPS: Mapping[str, tuple[str, ...]] = {
    "/v1/chat/completions": (_COMMON, _VENDORS),
    "/v1/completions": (_COMMON,),
    "/v1/messages": (_COMMON,),
    "/v1/responses": ("max_output_tokens",),
}
"""The members of each path that servers obey; the first is the one to add. The vendor of the second one's name takes
that for each of its models, and the first for older ones alone."""


def is_capped_at(cap: int, body: Mapping[str, Any], path: str) -> bool:
    """Return whether a body whose largest cap this is has nothing for `capped_members` to change."""
    names = _CAPS.get(path)
    return names is not None and body.get(names[0]) == cap


def capped_members(body: Mapping[str, Any], path: str, provider: str, cap: int) -> dict[str, bytes]:
    """The members to change so that no cap is above `cap`, as JSON text. None for a path without caps."""
    names = _CAPS.get(path)
    if names is None:
        return {}
    text = b"%d" % cap
    changed: dict[str, bytes] = {}
    for name in _NAMES.intersection(body):
        own = body[name]
        if type(own) is int and not 0 < own <= cap:
            changed[name] = text
    missing = names[0]
    if body.get(missing) is None:  # many servers of others pass over the name that the vendor has
        if provider == VENDOR_B and _VENDORS in names:
            missing = _VENDORS
        if body.get(missing) is None:
            changed[missing] = text
    return changed
