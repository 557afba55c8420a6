"""The JSON form of a price: of the API, the audit trail, control's database and policy. Amounts are decimal text.

What has a default may be left out or null. See docs/reference/usage-reports.md#prices.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from policy.prices import LongContext, Price, TokenPrices, amount_text, date_text, parse_date, token_prices

Wire = dict[str, Any]
MAX_SERVICE_TIERS = 20
MAX_MODEL_TOKENS = 1_000_000_000
"""The largest bound of what a model can take or give."""
MULTIPLIER_PATTERN = re.compile(r"(1000(\.0{1,4})?|[0-9]{1,3}(\.[0-9]{1,4})?)")
_KINDS = TokenPrices._fields
_LONG_KINDS = ("input", "cached_input", "cache_write", "output")
LONG_AMOUNTS = tuple(f"{kind}_per_million" for kind in _LONG_KINDS)
"""The amounts of `long_context`. The one of cache writes has a default."""
AMOUNT_MEMBERS = (*(f"{kind}_per_million" for kind in _KINDS), "per_call", "per_server_tool_call")
COUNT_MEMBERS = ("max_input_tokens", "max_output_tokens")
PRICE_MEMBERS = frozenset(("valid_from", "currency", *AMOUNT_MEMBERS, "long_context", "service_tiers", *COUNT_MEMBERS))
LONG_CONTEXT_MEMBERS = frozenset(("above_input_tokens", *LONG_AMOUNTS))
TIER_MEMBERS = frozenset(("multiplier",))
"""All members of the JSON form and of its parts."""


def parse_multiplier(text: str) -> Decimal:
    """The factor of a service tier as callers write it. ValueError unless it is at most 1000, with at most 4 digits."""
    if MULTIPLIER_PATTERN.fullmatch(text) is None:
        raise ValueError("must be decimal text from 0 to 1000 with at most 4 digits after the point, such as 0.5")
    return Decimal(text)


def parse_token_count(text: str) -> int:
    """A number of tokens as callers write it. ValueError unless it is a whole number within bounds."""
    if re.fullmatch("[0-9]{1,10}", text) is None or not 1 <= int(text) <= MAX_MODEL_TOKENS:
        raise ValueError(f"must be a whole number from 1 to {MAX_MODEL_TOKENS}")
    return int(text)


def price_to_wire(price: Price) -> Wire:
    """All members but the slug, each with its value where it is a default one."""
    return {
        "valid_from": date_text(price.valid_from_ms),
        "currency": price.currency,
        **_token_members(price.tokens, _KINDS),
        "per_call": amount_text(price.per_call),
        "per_server_tool_call": amount_text(price.per_server_tool_call),
        "long_context": None if price.long_context is None else _long_context_members(price.long_context),
        "service_tiers": _tier_members(price) or None,
        "max_input_tokens": price.max_input_tokens,
        "max_output_tokens": price.max_output_tokens,
    }


def price_from_wire(slug: str, wire: Mapping[str, Any]) -> Price:
    """The price of a slug that these members describe. They are of the right types, and nothing else is checked."""
    long_context = wire.get("long_context")
    tiers = wire.get("service_tiers") or {}
    return Price(
        slug=slug,
        valid_from_ms=parse_date(wire["valid_from"]),
        currency=wire["currency"],
        tokens=_tokens(wire),
        per_call=Decimal(wire.get("per_call") or 0),
        per_server_tool_call=Decimal(wire.get("per_server_tool_call") or 0),
        long_context=None
        if long_context is None
        else LongContext(long_context["above_input_tokens"], _tokens(long_context)),
        service_tiers=tuple(sorted([(tier, Decimal(members["multiplier"])) for tier, members in tiers.items()])),
        max_input_tokens=wire.get("max_input_tokens"),
        max_output_tokens=wire.get("max_output_tokens"),
    )


def _token_members(tokens: TokenPrices, kinds: tuple[str, ...]) -> Wire:
    return {f"{kind}_per_million": amount_text(getattr(tokens, kind)) for kind in kinds}


def _long_context_members(long_context: LongContext) -> Wire:
    members = _token_members(long_context.tokens, _LONG_KINDS)
    return {"above_input_tokens": long_context.above_input_tokens, **members}


def _tier_members(price: Price) -> Wire:
    return {tier: {"multiplier": _shortest(factor)} for tier, factor in price.service_tiers}


def _shortest(factor: Decimal) -> str:
    return format(factor.normalize(), "f")


def _tokens(members: Mapping[str, Any]) -> TokenPrices:
    amounts = {kind: Decimal(text) for kind in _KINDS if (text := members.get(f"{kind}_per_million")) is not None}
    return token_prices(**amounts)
