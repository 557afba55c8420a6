"""Sums of usage and what they cost, as reports and the usage page show them."""

from typing import Any, Literal

from pydantic import Field

from control.api.protocol.schemas import ResponseV1
from control.records.usage_sums import PLAIN, Usage
from control.resources.billing.report_groups import Totals
from policy.prices import money_texts


def optional(description: str) -> Any:
    """A member that is left out where there is nothing to say."""
    return Field(None, description=description, exclude_if=lambda value: value is None)


class UsageSumsV1(ResponseV1):
    """Sums over calls. `input_tokens` counts all input, `output_tokens` all output.

    The members behind `cached_input_tokens` are left out where they are 0. Tokens of sound and pictures are those that
    are neither cached nor written to a cache.
    """

    calls: int
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int
    uncharged_calls: int | None = optional("Calls that do not cost `per_call`.")
    cache_write_tokens: int | None = optional("Input that was written to a cache.")
    cache_write_1h_tokens: int | None = optional("The part of it that was written for an hour.")
    reasoning_tokens: int | None = optional("A part of the output.")
    audio_input_tokens: int | None = optional("A part of the input.")
    image_input_tokens: int | None = optional("A part of the input.")
    audio_output_tokens: int | None = optional("A part of the output.")
    image_output_tokens: int | None = optional("A part of the output.")
    server_tool_calls: int | None = optional("Calls of tools that a vendor ran.")


class UsageTotalsV1(UsageSumsV1):
    """Sums over calls, and what they cost.

    `cost`: exact decimal text by currency, of the calls that have a price; null if none has one.
    """

    cost: dict[str, str] | None
    unpriced_calls: int


OrderSum = Literal[
    "calls",
    "input_tokens",
    "output_tokens",
    "cached_input_tokens",
    "uncharged_calls",
    "cache_write_tokens",
    "cache_write_1h_tokens",
    "reasoning_tokens",
    "audio_input_tokens",
    "image_input_tokens",
    "audio_output_tokens",
    "image_output_tokens",
    "server_tool_calls",
    "unpriced_calls",
    "cost",
]
"""The sums by which a report can be ordered."""
_MEMBERS = tuple(UsageSumsV1.model_fields)
"""The members of sums, in the order of `Usage`."""
FIGURES = dict(zip(_MEMBERS, Usage._fields, strict=True))
"""The figure that each of these members shows."""


def shown_sums(usage: Usage) -> dict[str, Any]:
    plain = dict(zip(_MEMBERS, usage[:PLAIN], strict=False))
    return plain | {name: figure for name, figure in zip(_MEMBERS[PLAIN:], usage[PLAIN:], strict=True) if figure}


def shown_totals(totals: Totals) -> dict[str, Any]:
    """The members of a `UsageTotalsV1`."""
    cost = totals.cost
    return {
        **shown_sums(totals.usage),
        "cost": None if cost is None else money_texts(cost),
        "unpriced_calls": totals.unpriced_calls,
    }
