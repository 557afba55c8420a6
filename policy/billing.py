"""The billing event: its fields, its order, its idempotency key (docs/reference/events-and-webhooks.md#the-event)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

EVENT_TYPE = "API_BILLING_USAGE"
MAX_COUNT = 2**53 - 1
"""The largest figure of an event: what a JSON number holds exactly, and a BIGINT and a sum of many well below."""


MAX_REPORTED_TOKENS = 4_000_000
"""The largest figure of a provider's usage report that is believed, where no setting says otherwise."""


class Tokens(NamedTuple):
    """What a call cost, in tokens. `input` counts cached and uncached input alike; `cached_input` is a part of it."""

    input: int = 0
    output: int = 0
    cached_input: int = 0

    @classmethod
    def from_wire(cls, counts: Sequence[int]) -> "Tokens":
        """From the three numbers of the wire form."""
        input, output, cached_input = counts
        return cls(input=input, output=output, cached_input=cached_input)

    @property
    def total(self) -> int:
        """What TOKEN limits count: cached input at full weight (docs/reference/limits.md#tokens)."""
        return self.input + self.output


@dataclass(frozen=True, slots=True)
class BillingEvent:
    """One admitted and dispatched call through a slug. `idempotency_key` is a ULID, made before dispatch."""

    idempotency_key: str
    workspace_id: str
    group_id: str
    external_entity_id: str
    api_key_prefix: str
    request_id: str
    model_slug: str
    ended_at_ms: int
    status: int
    tokens: Tokens
    request_metadata: Mapping[str, Any] | None = None

    def to_wire(self) -> dict[str, Any]:
        """The form in which the proxy hands the event to control's ingest."""
        return {
            "idempotency_key": self.idempotency_key,
            "workspace_id": self.workspace_id,
            "group_id": self.group_id,
            "external_entity_id": self.external_entity_id,
            "api_key_prefix": self.api_key_prefix,
            "request_id": self.request_id,
            "model_slug": self.model_slug,
            "ended_at_ms": self.ended_at_ms,
            "status": self.status,
            "tokens": [self.tokens.input, self.tokens.output, self.tokens.cached_input],
            "request_metadata": self.request_metadata,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "BillingEvent":
        """The inverse of `to_wire`. KeyError, TypeError or ValueError when the shape is not that.

        No event fails for the size of a figure: above MAX_COUNT, as a journal of an older proxy may hold it, it counts
        as that.
        """
        counts = wire["tokens"]
        if not isinstance(counts, list) or len(counts) != 3 or not all(map(_is_figure, counts)):
            raise ValueError("tokens are three whole numbers of at least 0: input, output, cached input")
        if not all(isinstance(wire[name], str) for name in _TEXTS):
            raise TypeError(f"these are text: {', '.join(_TEXTS)}")
        if not (_is_count(wire["ended_at_ms"]) and _is_count(wire["status"])):
            raise TypeError("ended_at_ms and status are whole numbers of at least 0")
        if not isinstance(wire["request_metadata"], Mapping | None):
            raise TypeError("request_metadata is an object or null")
        rest = {name: wire[name] for name in cls.__dataclass_fields__ if name != "tokens"}
        return cls(tokens=Tokens.from_wire([min(count, MAX_COUNT) for count in counts]), **rest)


_TEXTS = (
    "idempotency_key",
    "workspace_id",
    "group_id",
    "external_entity_id",
    "api_key_prefix",
    "request_id",
    "model_slug",
)


def _is_figure(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_count(value: object) -> bool:
    return _is_figure(value) and value <= MAX_COUNT  # type: ignore[operator]  # it is an int
