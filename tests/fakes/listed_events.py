"""The list of billing events, as a client of the management API sees it: windows, pages, cursors, the holdback."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from commands.errors import AwayError, RefusedError

START_MS = 1_795_000_000_000
DETAILS = {
    "status": 200,
    "cacheWriteTokens": 5,
    "cacheWrite1hTokens": 3,
    "reasoningTokens": 7,
    "audioInputTokens": 0,
    "audioOutputTokens": 0,
    "imageInputTokens": 0,
    "imageOutputTokens": 0,
    "serverToolCalls": 2,
    "serviceTier": "flex",
    "source": "REPORTED",
}
_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def time_text(epoch_ms: int) -> str:
    moment = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ulid(epoch_ms: int, number: int) -> str:
    value = (epoch_ms << 80) | number
    text = ""
    for _ in range(26):
        value, digit = divmod(value, 32)
        text = _DIGITS[digit] + text
    return text


def listed_event(number: int, at_ms: int = START_MS, entity: str = "customer", slug: str = "acme/chat") -> Any:
    """An event `number` ms after `at_ms`, with `number + 1` output tokens and twice as many of input."""
    return {
        "type": "API_BILLING_USAGE",
        "idempotencyKey": ulid(at_ms + number, number),
        "timestamp": time_text(at_ms + number),
        "requestId": f"req-{number}",
        "modelSlug": slug,
        "externalEntityId": entity,
        "apiKeyPrefix": "tg_abc",
        "tokens": {"inputTokens": 2 * (number + 1), "outputTokens": number + 1, "cachedInputTokens": number % 2},
    }


@dataclass
class ListedEvents:
    """A client. `final`: nothing from this time on is shown yet. `page_items` bounds what a page has."""

    events: list[Any]
    final: str = time_text(START_MS + 3_600_000)
    page_items: int = 4
    failures: int = 0
    """The number of next calls that fail."""
    refuses_cursors: bool = False
    includes_details: bool = False
    """True if the window that is read was asked for with details. Events that have none get those of `DETAILS`."""
    calls: list[dict[str, Any]] = field(default_factory=list)

    async def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        await asyncio.sleep(0)
        assert (method, path) == ("GET", "/v1/gateway/events")
        self.calls.append(query)
        if self.failures:
            self.failures -= 1
            raise AwayError("503: away")
        if "cursor" in query:
            start, end, place = query["cursor"].split("|")
            if self.refuses_cursors:
                self.refuses_cursors = False
                raise RefusedError("400: invalid cursor", 400)
            return self._page(start, end, int(place))
        end = query["end_time"]
        if end is not None and end <= query["start_time"]:
            raise RefusedError("400: end_time must be after start_time", 400)
        end = self.final if end is None else min(end, self.final)
        self.includes_details = query.get("include") == "details"
        return self._page(query["start_time"], end, 0)

    def _page(self, start: str, end: str, place: int) -> Any:
        listed = sorted(self.events, key=lambda event: (event["timestamp"], event["idempotencyKey"]))
        listed = [event for event in listed if start <= event["timestamp"] < end]
        stop = place + self.page_items
        cursor = f"{start}|{end}|{stop}" if stop < len(listed) else None
        return {
            "items": [self._shown(event) for event in listed[place:stop]],
            "pagination": {"has_more": cursor is not None, "cursor": cursor},
            "window": {"start_time": start, "end_time": end},
        }

    def _shown(self, event: Any) -> Any:
        if not self.includes_details:
            return event
        return {"details": DETAILS, "cost": {"amount": "0.25", "currency": "EUR"}} | event


def keys(events: Sequence[Any]) -> list[str]:
    return [event["idempotencyKey"] for event in events]
