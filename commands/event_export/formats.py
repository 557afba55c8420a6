"""How exported events are written: CSV for spreadsheets, JSON lines as the API answers them. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from commands.csv_text import csv_text

CSV, JSON_LINES = "csv", "jsonl"
FORMATS = (CSV, JSON_LINES)
_HEADER = (
    "timestamp",
    "idempotency_key",
    "request_id",
    "model_slug",
    "external_entity_id",
    "api_key_prefix",
    "input_tokens",
    "output_tokens",
    "cached_input_tokens",
)
_TEXTS = ("timestamp", "idempotencyKey", "requestId", "modelSlug", "externalEntityId", "apiKeyPrefix")
_TOKENS = ("inputTokens", "outputTokens", "cachedInputTokens")
Event = Mapping[str, Any]


def head(format: str) -> str:
    """What a file begins with."""
    return csv_text([_HEADER]) if format == CSV else ""


def lines(format: str, events: Sequence[Event]) -> str:
    """The events in the given order, one a line."""
    if format == CSV:
        return csv_text(_row(event) for event in events)
    return "".join(json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n" for event in events)


def _row(event: Event) -> list[Any]:
    return [*(event[name] for name in _TEXTS), *(event["tokens"][name] for name in _TOKENS)]
