"""Compares the callers' records with the billing events and the counters. Does no I/O; each fault is one sentence.

A complete answer has exactly one event, with its tokens. A refused call has none. A call that was cut off has at most
one, and exactly one if the caller received part of the answer.

See docs/reference/events-and-webhooks.md#crashes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policy.billing import Tokens
from tests.journeys.callers import CallRecord

NOTHING = Tokens(input=0, output=0, cached_input=0)
REFUSED_BEFORE_DISPATCH = frozenset(
    ("RATE_LIMITED", "LIMITS_UNAVAILABLE", "METERING_UNAVAILABLE", "POLICY_UNAVAILABLE", "CAPACITY_EXHAUSTED")
)
GATEWAY_BUGS = frozenset(("INTERNAL_GATEWAY_ERROR",))
REDIS_MAY_LOSE_S = 2.0
"""Redis with `appendfsync everysec` may postpone a write by two seconds while a sync is slow (redis.conf), so a SIGKILL
loses at most that much."""
RETURNED_WITHIN_S = 10.0
"""The reservation of a call that was refused because Redis was late is returned within this time, by its worker."""


@dataclass(frozen=True, slots=True)
class Event:
    """One billing event as the management API shows it."""

    key: str
    request_id: str
    entity: str
    tokens: Tokens
    ended_at: str

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> "Event":
        counts = item["tokens"]
        tokens = Tokens(
            input=counts["inputTokens"], output=counts["outputTokens"], cached_input=counts["cachedInputTokens"]
        )
        return cls(item["idempotencyKey"], item["requestId"], item["externalEntityId"], tokens, item["timestamp"])


def faults_of_events(records: Sequence[CallRecord], items: Sequence[Mapping[str, Any]]) -> list[str]:
    """All faults in the events."""
    events = [Event.of(item) for item in items]
    by_request: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_request[event.request_id].append(event)
    calls = {call.request_id: call for call in records}
    faults = [f"{key} is in the list twice" for key in _duplicates(event.key for event in events)]
    faults += [f"an event of {id}, a call that no caller made" for id in by_request if id not in calls]
    for call in records:
        faults += (f"{call.request_id}: {fault} ({call})" for fault in _of_call(call, by_request[call.request_id]))
    return faults


def _of_call(call: CallRecord, events: Sequence[Event]) -> Iterator[str]:
    if len(events) > 1:
        yield f"{len(events)} events: {events}"
    if any(event.entity != call.entity for event in events):
        yield "billed to another entity"
    if call.tokens is not None:
        yield from _of_answered(call, events)
    elif call.status not in (0, 200):
        yield from _of_refused(call, events)
    elif call.partial:
        if all(event.tokens == NOTHING for event in events):
            yield "part of an answer arrived, but nothing is billed"
    elif not call.streamed:
        yield from (f"billed {event.tokens}" for event in events if event.tokens not in (NOTHING, call.question_tokens))


def _of_answered(call: CallRecord, events: Sequence[Event]) -> Iterator[str]:
    if call.tokens != call.question_tokens:
        yield f"the answer reported {call.tokens}"
    if not events:
        yield "answered, but there is no event"
    yield from (
        f"the answer reported {call.tokens}, billed {event.tokens}" for event in events if event.tokens != call.tokens
    )


def _of_refused(call: CallRecord, events: Sequence[Event]) -> Iterator[str]:
    if call.code in GATEWAY_BUGS:
        yield "the gateway reported an internal error"
    if events and (call.code in REFUSED_BEFORE_DISPATCH or call.status < 500):
        yield "refused, but there is an event"
    yield from (f"refused, billed {event.tokens}" for event in events if event.tokens != NOTHING)


def usage_by_entity(items: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Tokens of the events, as the counters count them."""
    sums: dict[str, int] = defaultdict(int)
    for event in map(Event.of, items):
        sums[event.entity] += event.tokens.total
    return sums


@dataclass(frozen=True, slots=True)
class Requests:
    """The bounds on an entity's counted requests. A dispatched call counts, however it ended; a call refused before
    dispatch does not, unless its worker died before it could return the reservation."""

    minimum: int
    maximum: int

    @classmethod
    def of(
        cls,
        entity: str,
        records: Iterable[CallRecord],
        items: Iterable[Mapping[str, Any]],
        worker_deaths: Sequence[float] = (),
    ) -> "Requests":
        events = [event for event in map(Event.of, items) if event.entity == entity]
        request_ids = {event.request_id for event in events}
        others = [call for call in records if call.entity == entity and call.request_id not in request_ids]
        uncertain = sum(not call.status or _may_be_unreturned(call, worker_deaths) for call in others)
        return cls(sum(event.tokens != NOTHING for event in events), len(events) + uncertain)


def _may_be_unreturned(call: CallRecord, worker_deaths: Sequence[float]) -> bool:
    """Return whether Redis' late reply refused the call and its worker may have died before that reply."""
    is_refusal = call.code == "LIMITS_UNAVAILABLE"
    return is_refusal and any(-1 <= death_s - call.ended_at_s <= RETURNED_WITHIN_S for death_s in worker_deaths)


def tokens_redis_may_lose(
    items: Iterable[Mapping[str, Any]], records: Sequence[CallRecord], deaths: Sequence["Death"]
) -> int:
    """Return the tokens that the counters may lack after Redis died: those settled too late to be on its disk."""
    lost_ids = {call.request_id for call in records if any(death.may_lose(call.ended_at_s) for death in deaths)}
    return sum(event.tokens.total for event in map(Event.of, items) if event.request_id in lost_ids)


@dataclass(frozen=True, slots=True)
class Death:
    """A SIGKILL of Redis. `disturbed_at_s`: when the disturbance that may have delayed settlements began."""

    at_s: float
    disturbed_at_s: float

    def may_lose(self, ended_at_s: float) -> bool:
        """Return whether the settlement of a call that ended at `ended_at_s` may be lost."""
        return self.disturbed_at_s - REDIS_MAY_LOSE_S <= ended_at_s <= self.at_s + 1


def _duplicates(keys: Iterable[str]) -> list[str]:
    return sorted(key for key, count in Counter(keys).items() if count > 1)
