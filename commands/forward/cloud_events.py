"""Events as CloudEvents 1.0, many in one request (`application/cloudevents-batch+json`).

`id` is the idempotency key; receivers drop a second event with the same `id` and `source`. A batch that is refused is
halved until the refused event is found. The format is CloudEvents' JSON batch format and HTTP binding 1.0.2.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from commands.forward.answers import Sender, Verdict, reason, verdict
from commands.records.billing_events import Event
from commands.records.receiver import Recovery, RefusedEvent

CONTENT_TYPE = "application/cloudevents-batch+json"
OPENMETER_PATH = "/api/v1/events"
Data = Callable[[Event], Any]


@dataclass(frozen=True, slots=True)
class Envelope:
    """The members that all events share: `source` and `type`, and how the data is made."""

    source: str
    type: str
    data: Data

    def wrap(self, event: Event) -> dict[str, Any]:
        return {
            "specversion": "1.0",
            "id": event.key,
            "source": self.source,
            "type": self.type,
            "subject": event.entity,
            "time": event.timestamp,
            "datacontenttype": "application/json",
            "data": self.data(event),
        }


def listed(event: Event) -> Any:
    """The event as the API lists it."""
    return event.listed


def metered(event: Event) -> Any:
    """One flat object, as OpenMeter's meters read it: figures by `valueProperty`, the rest by `groupBy`."""
    return {
        "calls": 1,
        "input_tokens": event.input_tokens,
        "uncached_input_tokens": event.uncached_input_tokens,
        "cached_input_tokens": event.cached_input_tokens,
        "output_tokens": event.output_tokens,
        "model": event.slug,
        "api_key_prefix": event.listed.get("apiKeyPrefix"),
        "request_id": event.listed.get("requestId"),
        **event.details,
    }


class CloudEventsReceiver:
    """A receiver of CloudEvents over HTTP. It must drop a repeated `id` of the same `source`."""

    remembers_s: float | None = None

    def __init__(self, sender: Sender, path: str, envelope: Envelope, batch_events: int) -> None:
        self.batch_events = batch_events
        self._sender = sender
        self._path = path
        self._envelope = envelope

    def recover(self, mark: int | None) -> Recovery | None:
        return None

    async def deliver(self, events: Sequence[Event]) -> tuple[list[RefusedEvent], int]:
        return await self._send(events), 0

    async def _send(self, events: Sequence[Event]) -> list[RefusedEvent]:
        body = json.dumps([self._envelope.wrap(event) for event in events], separators=(",", ":")).encode()
        answer = await self._sender.post(self._path, body, CONTENT_TYPE)
        if verdict(answer) is Verdict.TAKEN:
            return []
        if len(events) == 1:
            return [RefusedEvent(events[0], reason(answer))]
        middle = len(events) // 2
        return await self._send(events[:middle]) + await self._send(events[middle:])

    async def close(self) -> None:
        await self._sender.close()
