"""Prices from LiteLLM's public price map, `model_prices_and_context_window.json`: US dollars for each token.

Pure. What a price has no member for is told in notes. See docs/reference/money.md#public-price-maps.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal
from difflib import get_close_matches
from typing import Any, NoReturn

from commands.errors import ManagementError
from policy.price_wire import parse_multiplier
from policy.prices import parse_amount

CURRENCY = "USD"
_BASES = {
    "input_cost_per_token": "input",
    "output_cost_per_token": "output",
    "cache_read_input_token_cost": "cached_input",
    "cache_creation_input_token_cost": "cache_write",
    "cache_creation_input_token_cost_above_1hr": "cache_write_1h",
    "input_cost_per_audio_token": "audio_input",
    "input_cost_per_image_token": "image_input",
    "output_cost_per_audio_token": "audio_output",
    "output_cost_per_image_token": "image_output",
}
_ABOVE = r"(?:_above_(?P<{}>[0-9]{{1,6}})k_tokens)?"
_TIER = "(?:_(?P<tier>flex|priority|balanced|ultrafast))?"
_MEMBER = re.compile(f"(?P<base>{'|'.join(_BASES)}){_ABOVE.format('above')}{_TIER}{_ABOVE.format('last')}")
_REMEDY = "set its price with `tollgate prices set`"
_PRICE_WORDS = ("cost", "pric", "multiplier", "uplift", "provider_specific_entry")
_SAME = {
    "output_cost_per_reasoning_token": "output_cost_per_token",
    "input_cost_per_token_cache_hit": "cache_read_input_token_cost",
}
"""Members that say nothing when they are as another one."""
_LONG_KINDS = ("input", "cached_input", "cache_write", "output")
_OTHER_COSTS = ("input_cost_per_", "output_cost_per_")
_RANGED = (
    "tiered_pricing",
    "input_cost_per_token",
    "cache_read_input_token_cost",
    "cache_creation_input_token_cost",
)
"""Members in whose place a table of ranges is read."""
_MAX_BOUND = 10**9
_EXACT = Context(prec=400)
_MAX_DIGITS = 100
Place = tuple[str, str, int]
"""Kind, service tier or "", and the input above which it holds in thousands of tokens, or 0."""


class PriceMapError(ManagementError):
    """The file is no price map, or has no price for a name that was given."""


@dataclass(slots=True)
class MappedPrice:
    """A model's price as members of the API's body. `notes`: what of the map is not in it."""

    members: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_price_map(content: bytes) -> Mapping[str, Any]:
    """The models of the map by name, numbers by their digits. Raises PriceMapError."""
    try:
        models = json.loads(content, parse_float=Decimal, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise PriceMapError(f"not a price map: no JSON ({error})") from None
    if not isinstance(models, dict):
        raise PriceMapError("not a price map: expected an object with a member for each model")
    return models


def price_of_model(models: Mapping[str, Any], name: str) -> MappedPrice:
    """The model's price. PriceMapError if there is none, or a price has no exact form."""
    model = models.get(name)
    if not isinstance(model, dict):
        near = get_close_matches(name, models, n=5, cutoff=0.5)
        raise PriceMapError(f"the map has no model {name!r}" + (f"; near it are {', '.join(near)}" if near else ""))
    return _Model(name, _target(models, name)).price()


def _target(models: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The model, or the one that it is an alias of. PriceMapError without one."""
    names = [name]
    model = models[name]
    while isinstance(model, dict) and "alias_of" in model:
        names.append(model["alias_of"])
        is_ring = names[-1] in names[:-1]
        model = models.get(names[-1]) if isinstance(names[-1], str) and not is_ring else None
    if not isinstance(model, dict):
        raise PriceMapError(f"{name}: alias_of {names[-1]!r} names no model of the map; {_REMEDY}")
    return model


class _Model:
    """One model of the map. Marks what is used, so that the rest can be told."""

    def __init__(self, name: str, members: Mapping[str, Any]) -> None:
        self._name = name
        self._ranged = _members_of_ranges(members.get("tiered_pricing"))
        self._members = _with_ranges(members, self._ranged) if self._ranged else members
        self._rest = {key for key, value in self._members.items() if _is_price(key, value)}
        self._amounts: dict[Place, Decimal] = {}
        self._result = MappedPrice()

    def price(self) -> MappedPrice:
        self._read_amounts()
        members = self._result.members
        for kind in _BASES.values():
            if (amount := self._amounts.get((kind, "", 0))) is not None:
                members[f"{kind}_per_million"] = _text(amount)
        if "output_per_million" not in members and self._members.get("mode") in ("embedding", "rerank"):
            members["output_per_million"] = "0"
        for kind in ("input", "output"):
            if f"{kind}_per_million" not in members:
                raise self._refusal(f"has no {kind}_cost_per_token")
        self._add_long_context()
        self._add_tiers()
        self._add_tools()
        self._add_calls()
        for bound in ("max_input_tokens", "max_output_tokens"):
            if type(count := self._members.get(bound)) is int and count > 0:
                members[bound] = count
        for key, same in _SAME.items():
            if self._members.get(key) == self._members.get(same):
                self._rest.discard(key)
        self._result.notes += [f"{key} is left out: a price has no member for it" for key in sorted(self._rest)]
        return self._result

    def _read_amounts(self) -> None:
        for key in sorted(self._members):
            match = _MEMBER.fullmatch(key)
            if match is not None and self._members[key] is not None:
                above = int(match["above"] or match["last"] or 0)
                self._amounts[_BASES[match["base"]], match["tier"] or "", above] = self._per_million(key)
                self._rest.discard(key)

    def _per_million(self, key: str) -> Decimal:
        """The amount of a million tokens. It must be one that the API takes."""
        value = self._members[key]
        if type(value) not in (int, Decimal):
            raise PriceMapError(f"{self._name}: {self._shown(key)} is no number; {_REMEDY}")
        return self._checked(key, _EXACT.multiply(Decimal(value), Decimal(10**6)))

    def _checked(self, key: str, amount: Decimal) -> Decimal:
        try:
            parse_amount(_text(amount) if abs(amount.adjusted()) < _MAX_DIGITS else str(amount))
        except ValueError as error:
            text = f"{self._name}: the price of {self._shown(key)} is {amount}; it {error}"
            raise PriceMapError(f"{text}. {_REMEDY.capitalize()}") from None
        return amount

    def _shown(self, key: str) -> str:
        return f"{key} (of tiered_pricing)" if key in self._ranged else key

    def _refusal(self, what: str) -> PriceMapError:
        """The error of a model that the map does not price by tokens."""
        costs = sorted(key for key, value in self._members.items() if _is_price(key, value) and _is_cost(key))
        others = f"its prices in the map are {', '.join(costs)}" if costs else "the map has no price for it"
        return PriceMapError(f"{self._name} {what}: {others}; {_REMEDY}")

    def _at(self, kind: str, above: int, tier: str = "") -> Decimal | None:
        """The amount of a kind; without one above a bound, that below it, as the map's own reader has it."""
        amount = self._amounts.get((kind, tier, above))
        return self._amounts.get((kind, tier, 0)) if amount is None else amount

    def _add_long_context(self) -> None:
        bounds = sorted({above for kind, tier, above in self._amounts if above and not tier and kind in _LONG_KINDS})
        self._note_other_bounds(bounds)
        if len(bounds) > 1:
            several = " and ".join(f"{bound}k" for bound in bounds)
            self._note(f"prices above {several} tokens are left out: a price has one bound of long context")
        if len(bounds) != 1:
            return
        bound = bounds[0]
        amounts = {kind: self._at(kind, bound) for kind in _LONG_KINDS}
        amounts["cached_input"] = amounts["cached_input"] if amounts["cached_input"] is not None else amounts["input"]
        texts = {f"{kind}_per_million": _text(amount) for kind, amount in amounts.items() if amount is not None}
        self._result.members["long_context"] = {"above_input_tokens": bound * 1000, **texts}
        write = amounts["input"] if amounts["cache_write"] is None else amounts["cache_write"]
        plain = {"cache_write_1h": write, **dict.fromkeys(("audio_input", "image_input"), amounts["input"])}
        plain |= dict.fromkeys(("audio_output", "image_output"), amounts["output"])
        for kind, amount in plain.items():
            if self._at(kind, bound) not in (None, amount):
                self._note(
                    f"{kind} is {_text(amount or Decimal(0))} with long context, which has no price of its own for it"
                )

    def _note_other_bounds(self, bounds: list[int]) -> None:
        """Tell other prices above a bound that text does not have. Such tokens cost there what they do below it."""
        for (kind, tier, above), amount in self._amounts.items():
            is_other = above and not tier and above not in bounds
            if is_other and amount != self._amounts.get((kind, "", 0)):
                self._note(f"{kind} above {above}k tokens is left out: only text has a price with long context")

    def _add_tiers(self) -> None:
        for tier in sorted({tier for _, tier, _ in self._amounts if tier}):
            factor = self._factor(tier)
            if factor is None:
                self._note(f"service tier {tier} is left out: no one factor makes all its prices of the others")
            else:
                self._result.members.setdefault("service_tiers", {})[tier] = {"multiplier": factor}

    def _factor(self, tier: str) -> str | None:
        """The factor of the tier on every price, if there is one."""
        plain = {(kind, above): amount for (kind, of_tier, above), amount in self._amounts.items() if not of_tier}
        dear = {(kind, above): amount for (kind, of_tier, above), amount in self._amounts.items() if of_tier == tier}
        base = plain["input", 0]
        if plain.keys() != dear.keys() or not base:
            return None
        text = _text(Context(prec=60).divide(dear["input", 0], base))
        try:
            factor = parse_multiplier(text)
        except ValueError:
            return None
        fits = all(_EXACT.multiply(amount, factor) == dear[place] for place, amount in plain.items())
        return text if fits else None

    def _add_tools(self) -> None:
        """Take the price of a call of a tool, if it is one for all tools. Otherwise it is among what is left out."""
        costs = [*self._tool_costs()]
        if len({cost for _, cost in costs}) == 1:
            key, cost = costs[0]
            self._result.members["per_server_tool_call"] = _text(self._checked(key, cost))
            self._rest.difference_update(key for key, _ in costs)

    def _tool_costs(self) -> Iterator[tuple[str, Decimal]]:
        """The costs of a call of each tool, and the member that says so."""
        sizes = self._members.get("search_context_cost_per_query")
        for cost in sizes.values() if isinstance(sizes, dict) else ():
            if type(cost) not in (int, Decimal):
                raise PriceMapError(f"{self._name}: search_context_cost_per_query has what is no number; {_REMEDY}")
            yield "search_context_cost_per_query", Decimal(cost)
        calls = self._members.get("file_search_cost_per_1k_calls")
        if type(calls) in (int, Decimal) and calls:
            yield "file_search_cost_per_1k_calls", _EXACT.multiply(Decimal(calls), Decimal("0.001"))

    def _add_calls(self) -> None:
        """Take the price of a call. A model that costs nothing else is refused if the map prices it in another way."""
        key = "input_cost_per_request"
        if type(cost := self._members.get(key)) in (int, Decimal) and cost:
            self._result.members["per_call"] = _text(self._checked(key, Decimal(cost)))
            self._rest.discard(key)
        elif not any(self._amounts.values()) and any(key.startswith(_OTHER_COSTS) for key in self._rest):
            raise self._refusal("costs nothing by tokens")

    def _note(self, text: str) -> None:
        self._result.notes.append(text)


def _with_ranges(members: Mapping[str, Any], ranged: Mapping[str, Any]) -> dict[str, Any]:
    """The model with its table in place of the plain prices beside it, as the map's own reader has it."""
    return {**{key: value for key, value in members.items() if key not in _RANGED}, **ranged}


def _members_of_ranges(table: object) -> dict[str, Any]:
    """The prices of a table of two ranges of the input, as members of a model; none of any other table."""
    if not isinstance(table, list) or len(table) != 2 or not all(isinstance(part, dict) for part in table):
        return {}
    plain, long = table
    bound = _bound_of_ranges(plain.get("range"), long.get("range"))
    if not bound or plain.keys() != long.keys() or "input_cost_per_token" not in plain:
        return {}
    members = {key: value for key, value in plain.items() if key != "range"}
    return members | {f"{key}_above_{bound}k_tokens": long[key] for key in members}


def _bound_of_ranges(low: object, high: object) -> int:
    """The thousands of tokens at which the one range ends and the other begins; 0 without such a number."""
    if not (isinstance(low, list) and isinstance(high, list) and len(low) == len(high) == 2):
        return 0
    if any(type(end) not in (int, Decimal) for end in (*low, *high)):
        return 0
    bound = low[1]
    is_split = low[0] == 0 and high[0] == bound and 0 < bound < _MAX_BOUND and bound % 1000 == 0
    return int(bound) // 1000 if is_split else 0


def _is_cost(key: str) -> bool:
    return "cost" in key or "pricing" in key


def _is_price(key: str, value: object) -> bool:
    return bool(value) and any(word in key for word in _PRICE_WORDS)


def _text(amount: Decimal) -> str:
    return format(amount.normalize(_EXACT), "f")


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
