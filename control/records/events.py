"""Billing events as lists show them. Values only; times are epoch milliseconds."""

from dataclasses import dataclass
from typing import NamedTuple

EventPosition = tuple[int, str]
"""(timestamp, idempotency key) of an event: where a page of events ended."""


class ShownEvent(NamedTuple):
    """An event as lists show it. These tuples sort as pages do, because no two events have the same key."""

    timestamp_ms: int
    idempotency_key: str
    request_id: str
    model_slug: str
    external_entity_id: str
    api_key_prefix: str
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int


@dataclass(frozen=True, slots=True)
class EventWindow:
    """The selection of events for a list: those of `[start_ms, end_ms)`, and filters, empty for no filter."""

    workspace_id: str
    start_ms: int
    end_ms: int
    api_keys: tuple[str, ...] = ()
    external_entity_ids: tuple[str, ...] = ()
