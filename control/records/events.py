"""Billing events as lists show them. Values only; times are epoch milliseconds."""

from dataclasses import dataclass
from typing import NamedTuple

EventPosition = tuple[int, str]
"""(timestamp, idempotency key) of an event: where a page of events ended."""


class ShownEvent(NamedTuple):
    """An event as lists show it. These tuples sort as pages do, because no two events have the same key.

    From `status` on: what lists with details show. Figures may be None: nothing of the kind.
    """

    timestamp_ms: int
    idempotency_key: str
    request_id: str
    model_slug: str
    external_entity_id: str
    api_key_prefix: str
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int
    status: int = 0
    source: str | None = None
    service_tier: str | None = None
    cache_write_tokens: int | None = None
    cache_write_1h_tokens: int | None = None
    reasoning_tokens: int | None = None
    audio_input_tokens: int | None = None
    audio_output_tokens: int | None = None
    image_input_tokens: int | None = None
    image_output_tokens: int | None = None
    server_tool_calls: int | None = None
    charged: int = 1


PLAIN_FIELDS = ShownEvent._fields[: ShownEvent._fields.index("status")]
"""The fields of a list without details."""


@dataclass(frozen=True, slots=True)
class EventWindow:
    """The selection of events for a list: those of `[start_ms, end_ms)`, and filters, empty for no filter.

    `with_details`: the list shows what else the calls cost.
    """

    workspace_id: str
    start_ms: int
    end_ms: int
    api_keys: tuple[str, ...] = ()
    external_entity_ids: tuple[str, ...] = ()
    with_details: bool = False
