"""The members `details` and `cost` of events, as lists and webhooks show them.

A cost is computed when it is asked for, by the price of the event's slug that is valid at its timestamp.

See docs/reference/events-and-webhooks.md#details.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from policy.billing import Details, Tokens
from policy.prices import Price, Rates, amount_of, amount_text, cost_figures

Cost = dict[str, str]
"""The member `cost` of an event that has a price."""


class EventCosts:
    """The costs of events by these prices: all that are valid at the events' times. Each event is a row of `events`."""

    def __init__(self, prices: Iterable[Price]) -> None:
        self._prices: dict[str, list[Price]] = defaultdict(list)
        for price in sorted(prices, key=attrgetter("valid_from_ms")):
            self._prices[price.slug].append(price)
        self._rates: dict[tuple[str, int, str, bool], Rates] = {}

    def of(self, event: Any) -> Cost | None:
        """The member `cost`: exact, to the last digit. None if the slug had no price at that time."""
        units = self.units_of(event)
        return None if units is None else {"amount": amount_text(amount_of(units[1])), "currency": units[0]}

    def units_of(self, event: Any) -> tuple[str, int] | None:
        """The same cost: its currency, and units of `policy.prices.Rates`."""
        price = self._price_at(event.model_slug, event.timestamp_ms)
        if price is None:
            return None
        tier = event.service_tier or ""
        rates = self._rates_of(price, tier, price.is_long(event.input_tokens))
        tokens = Tokens(input=event.input_tokens, output=event.output_tokens, cached_input=event.cached_input_tokens)
        figures = cost_figures(tokens, _details(event), is_charged=bool(event.charged))
        return price.currency, rates.cost(figures)

    def _price_at(self, slug: str, at_ms: int) -> Price | None:
        prices = self._prices.get(slug, [])
        place = bisect_right(prices, at_ms, key=attrgetter("valid_from_ms"))
        return prices[place - 1] if place else None

    def _rates_of(self, price: Price, tier: str, is_long: bool) -> Rates:
        key = (price.slug, price.valid_from_ms, tier, is_long)
        if key not in self._rates:
            self._rates[key] = price.rates(tier, is_long=is_long)
        return self._rates[key]


def shown_details(event: Any) -> dict[str, Any]:
    """The member `details` of a row of `events`. One of an older proxy has no status and no source there."""
    details = _details(event)
    return {
        "status": None if event.source is None else event.status,
        "cacheWriteTokens": details.cache_write,
        "cacheWrite1hTokens": details.cache_write_1h,
        "reasoningTokens": details.reasoning,
        "audioInputTokens": details.audio_input,
        "audioOutputTokens": details.audio_output,
        "imageInputTokens": details.image_input,
        "imageOutputTokens": details.image_output,
        "serverToolCalls": details.server_tool_calls,
        "serviceTier": details.service_tier or None,
        "source": event.source,
    }


def _details(event: Any) -> Details:
    """Read the columns, in which null is 0."""
    return Details(
        cache_write=event.cache_write_tokens or 0,
        cache_write_1h=event.cache_write_1h_tokens or 0,
        reasoning=event.reasoning_tokens or 0,
        audio_input=event.audio_input_tokens or 0,
        audio_output=event.audio_output_tokens or 0,
        image_input=event.image_input_tokens or 0,
        image_output=event.image_output_tokens or 0,
        server_tool_calls=event.server_tool_calls or 0,
        service_tier=event.service_tier or "",
    )
