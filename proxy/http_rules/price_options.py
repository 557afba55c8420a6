"""Refuses requests that ask for what a vendor bills beside tokens, or at another price (400). Pure.

For targets whose `price_options` is `REFUSE`. In all dialects the caller runs functions and custom tools himself, and
the vendor runs every other tool. See docs/reference/inference.md#price-options.
"""

from collections.abc import Iterator
from typing import Any

from proxy.accounting.cost_bounds.vendor_tools import PAID_MEMBERS
from proxy.errors import UntranslatableError
from proxy.http_rules.strict_json import check_members_are_unique
from proxy.http_rules.vendor_state import CHAT_PATH, searched_text
from proxy.records.messages import Received

REASON = (
    'costs beside tokens, or changes their price, and this slug\'s target says "price_options": "REFUSE"; leave it out'
)
USUAL_VALUES: dict[str, frozenset[str]] = {
    "service_tier": frozenset(("auto", "default", "standard_only")),
    "speed": frozenset(("standard",)),
    "inference_geo": frozenset(("global",)),
}
"""Members that change the price, and the values that do not."""
PRICED_BETAS = ("context-1m-", "fast-mode-")
"""Beginnings of the beta values that change the price: a context of a million tokens, fast answers."""
BETA_HEADER = "anthropic-beta"
BETA_MEMBERS = ("anthropic_beta", "betas")
_CALLER_RUN = ("function", "custom")
_TOOLS = "tools"
_LISTS_OF_TOOLS = ("namespace", "additional_tools")
"""Types that hold tools of their own."""


def check_price_options(request: Received) -> None:
    """Raise `UntranslatableError` for the first such member; `MalformedRequestError` for one that is given twice."""
    if request.upload is None:
        check_members_are_unique(searched_text(request))
    field = next(_priced(request), None)
    if field is not None:
        raise UntranslatableError(field, REASON)


def _priced(request: Received) -> Iterator[str]:
    json = request.json
    for name, usual in USUAL_VALUES.items():
        value = json.get(name)
        if value is not None and not (isinstance(value, str) and value in usual):
            yield name
    yield from (name for name in PAID_MEMBERS if json.get(name) is not None and json[name] != [])
    yield from _priced_betas(request)
    yield from _vendor_run(json, _TOOLS, request.facts.path)
    items = json.get("input")
    for place, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict) and item.get("type") in _LISTS_OF_TOOLS:
            yield from _vendor_run(item, f"input.{place}.{_TOOLS}", request.facts.path)


def _priced_betas(request: Received) -> Iterator[str]:
    for value in request.incoming.header_values(BETA_HEADER):
        if any(beta.strip().lower().startswith(PRICED_BETAS) for beta in value.split(",")):
            yield BETA_HEADER
    for name in BETA_MEMBERS:
        member = request.json.get(name)
        betas = member if isinstance(member, list) else [member]
        if any(isinstance(beta, str) and beta.strip().lower().startswith(PRICED_BETAS) for beta in betas):
            yield name


def _vendor_run(holder: dict[str, Any], field: str, path: str) -> Iterator[str]:
    """The tools that the vendor runs, in a body, a namespace or an item that holds tools."""
    tools = holder.get(_TOOLS)
    if tools is not None and not isinstance(tools, list):
        yield field
    for place, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind in _LISTS_OF_TOOLS:
            yield from _vendor_run(tool, f"{field}.{place}.{_TOOLS}", path)
        elif kind not in _CALLER_RUN and not (kind is None and _is_function(tool, path)):
            yield f"{field}.{place}"


def _is_function(tool: object, path: str) -> bool:
    """Return whether a tool without a type is a function: with a name in Messages, with a `function` in Chat."""
    return isinstance(tool, dict) and isinstance(tool.get("function" if path == CHAT_PATH else "name"), str | dict)
