"""Events as Stripe meter events: one request per event and meter (`POST /v1/billing/meter_events`).

`identifier` makes a repeated one harmless for 24 hours: Stripe answers it with 400, which means that it has the event.
No `Idempotency-Key` is sent, since Stripe would repeat a stored 500 for it. Of one customer one request is under way at
a time, as Stripe asks for.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from commands.forward.answers import Sender, Verdict, error_of, reason, verdict
from commands.records.billing_events import FURTHER_FIGURES, Event, epoch_s
from commands.records.receiver import Answer, ReceiverAwayError, ReceiverError, Recovery, RefusedEvent

PATH = "/v1/billing/meter_events"
REMEMBERS_S = 23 * 3600.0
"""Stripe promises 24 hours. The last one is for requests that were under way, and for clocks."""
CUSTOMERS_AT_ONCE = 16


def _detail(name: str) -> Callable[[Event], int]:
    return lambda event: event.details.get(name) or 0


DETAIL_FIGURES = {name.removesuffix("_tokens"): name for name in FURTHER_FIGURES}
"""The figures of an event's details, and the names of their columns."""
FIGURES: Mapping[str, Callable[[Event], int]] = {
    "calls": lambda event: 1,
    "input": lambda event: event.input_tokens,
    "uncached_input": lambda event: event.uncached_input_tokens,
    "cached_input": lambda event: event.cached_input_tokens,
    "output": lambda event: event.output_tokens,
    "total": lambda event: event.input_tokens + event.output_tokens,
    **{figure: _detail(name) for figure, name in DETAIL_FIGURES.items()},
}
_CONFLICT = 409
_DUPLICATE_CODE = "duplicate_meter_event"
_DUPLICATE_MESSAGE = "An event already exists with identifier"
"""Stripe sends the message, and not always the code."""
Customer = Callable[[str], str | None]
"""The Stripe customer of an external entity id; None if there is none."""


@dataclass(frozen=True, slots=True)
class Meter:
    """A Stripe meter: its `event_name`, and the figure that it sums."""

    event_name: str
    figure: str


@dataclass(frozen=True, slots=True)
class MeterEvent:
    """One request."""

    meter: str
    identifier: str
    customer: str
    event: Event
    body: bytes


def read_meter(text: str) -> Meter:
    """Read `NAME=FIGURE`. Raises ValueError."""
    event_name, _, figure = text.partition("=")
    if not event_name or len(event_name) > 100 or figure not in FIGURES:
        raise ValueError(f"{text!r} is not NAME=FIGURE; FIGURE is one of {', '.join(FIGURES)}")
    return Meter(event_name, figure)


def meter_events(event: Event, meters: Sequence[Meter], customer: str) -> list[MeterEvent]:
    """Return what is sent for one event. A figure of 0 is not sent: it would change no sum."""
    events = []
    for meter in meters:
        if value := FIGURES[meter.figure](event):
            identifier = event.key if len(meters) == 1 else f"{event.key}.{meter.figure}"
            form = {
                "event_name": meter.event_name,
                "identifier": identifier,
                "timestamp": int(epoch_s(event.timestamp)),
                "payload[stripe_customer_id]": customer,
                "payload[value]": value,
            }
            events.append(MeterEvent(meter.event_name, identifier, customer, event, urlencode(form).encode()))
    return events


class StripeReceiver:
    """Stripe's meters. `batch_events`: after so many events the position is saved."""

    remembers_s: float | None = REMEMBERS_S

    def __init__(self, sender: Sender, meters: Sequence[Meter], customer: Customer, batch_events: int) -> None:
        self.batch_events = batch_events
        self._sender = sender
        self._meters = meters
        self._customer = customer
        self._answered: dict[str, str | None] = {}
        """Identifiers of the present batch that Stripe took (None) or refused (why). They are not sent again."""

    def recover(self, mark: int | None) -> Recovery | None:
        return None

    async def deliver(self, events: Sequence[Event]) -> tuple[list[RefusedEvent], int]:
        refused = []
        pairs: list[tuple[Event, list[MeterEvent]]] = []
        lanes: dict[str, list[MeterEvent]] = defaultdict(list)
        for event in events:
            if (customer := self._customer(event.entity)) is None:
                refused.append(RefusedEvent(event, f"no Stripe customer for entity {event.entity!r}"))
                continue
            meters = meter_events(event, self._meters, customer)
            pairs.append((event, meters))
            lanes[customer] += meters
        await self._send_all(list(lanes.values()))
        refused += [refusal for event, meters in pairs if (refusal := self._refused(event, meters)) is not None]
        self._answered.clear()
        return sorted(refused, key=lambda one: one.event.position), 0

    def _refused(self, event: Event, meters: Sequence[MeterEvent]) -> RefusedEvent | None:
        """The event, if a meter refused it, with what each of them said."""
        reasons = [f"{one.meter}: {why}" for one in meters if (why := self._answered[one.identifier]) is not None]
        return RefusedEvent(event, "; ".join(reasons), len(reasons) < len(meters)) if reasons else None

    async def _send_all(self, lanes: Sequence[Sequence[MeterEvent]]) -> None:
        """Send all, some customers at a time. Every lane ends before the first error is raised."""
        places = asyncio.Semaphore(CUSTOMERS_AT_ONCE)

        async def send(lane: Sequence[MeterEvent]) -> None:
            async with places:
                for one in lane:
                    if one.identifier not in self._answered:
                        self._answered[one.identifier] = await self._send(one)

        errors = [failure for failure in await asyncio.gather(*map(send, lanes), return_exceptions=True) if failure]
        in_doubt = bool(self._answered) or any(getattr(failure, "is_in_doubt", False) for failure in errors)
        for error in sorted(errors, key=lambda failure: isinstance(failure, ReceiverAwayError)):
            if isinstance(error, ReceiverAwayError | ReceiverError):
                error.is_in_doubt = in_doubt
            raise error

    async def _send(self, one: MeterEvent) -> str | None:
        """Send one event. Returns why Stripe refuses it for good, or None."""
        answer = await self._sender.post(PATH, one.body, "application/x-www-form-urlencoded")
        if answer.status == _CONFLICT:  # another request about this customer is under way
            raise ReceiverAwayError(f"Stripe answers {answer.status}", False, answer.retry_after_s)
        if is_duplicate(answer) or verdict(answer) is Verdict.TAKEN:
            return None
        return reason(answer)

    async def close(self) -> None:
        await self._sender.close()


def is_duplicate(answer: Answer) -> bool:
    """Return whether Stripe has an event with this identifier already."""
    error = error_of(answer.body) if answer.status == 400 else {}
    return error.get("code") == _DUPLICATE_CODE or str(error.get("message", "")).startswith(_DUPLICATE_MESSAGE)
