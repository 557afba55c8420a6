"""Builders for tests of the journal: calls and closes, and an ingest and counters in memory."""

import asyncio
import os
from pathlib import Path
from weakref import WeakKeyDictionary

import orjson

from policy.billing import Tokens
from policy.limits.settlement import Estimate, Reservation, Settlement
from proxy.accounting.journaled_call import JournaledCall, UnwrittenRecord
from proxy.edges.journal.supervisor.delivery import EventsMissingError, EventsRejectedError, IngestUnavailableError
from proxy.edges.journal.supervisor.shipped_events import ShippedOptions
from proxy.edges.journal.supervisor.shipper import Shipper, ShipperOptions
from proxy.edges.journal.writer import JournalOptions, JournalWriter
from proxy.errors import CountersUnavailableError
from tests.fakes.journal import ClosedCall, OpenedCall, progress_of

SMALL = JournalOptions(segment_bytes=24 * 1024)
ESTIMATE = Estimate(612, 7_000)
"""The estimate in open records: reserved, never billed."""
BEGUN = Tokens(input=90, output=0, cached_input=0)
"""The tokens of the first progress records."""
OPENED_AT_MS = 1_795_000_000_000
EAGER = ShipperOptions(poll_interval_s=0.005, idle_interval_s=0.005, first_delay_s=0.001, longest_delay_s=0.01)
KEEPING = ShippedOptions(keep_free_bytes=0)
"""Keeps events however full the disk of the tests is."""


def key(number: int) -> str:
    return f"01JD{number:022d}"


def reservation(number: int = 0, bucket: str = "tg:{grp_a|acme/chat}") -> Reservation:
    # Admitted in the future, so that replays never treat it as too old.
    return Reservation(
        key=bucket,
        buckets=(("grp_a", 1),),
        admitted_at_ms=1 << 60,
        reserved_tokens=600 + number,
        margin_tokens=ESTIMATE.margin,
    )


def call(
    number: int, *, reservations: tuple[Reservation, ...] | None = None, metadata: dict[str, str] | None = None
) -> OpenedCall:
    return OpenedCall(
        event_key=key(number),
        workspace_id="ws_1",
        group_id="grp_a",
        external_entity_id="customer-7",
        api_key_prefix="tg_abcdefghijkl",
        request_id=f"req-{number}",
        model_slug="acme/chat",
        request_metadata=metadata,
        opened_at_ms=OPENED_AT_MS + number,
        estimate=ESTIMATE,
        reservations=(reservation(number),) if reservations is None else reservations,
    )


def end(number: int, output: int = 7) -> ClosedCall:
    return ClosedCall(
        event_key=key(number),
        status=200,
        tokens=Tokens(input=11, output=output, cached_input=3),
        ended_at_ms=OPENED_AT_MS + 1000 + number,
        numbers=(number + 1,),
    )


_OPEN: WeakKeyDictionary[JournalWriter, dict[int, JournaledCall]] = WeakKeyDictionary()


def start(journal: JournalWriter, number: int, *, metadata: dict[str, str] | None = None) -> JournaledCall:
    """Open a call."""
    opened = journal.open(call(number, metadata=metadata).record)
    _OPEN.setdefault(journal, {})[number] = opened
    return opened


def finish(journal: JournalWriter, number: int) -> UnwrittenRecord | None:
    """Close a call that was opened by `start`."""
    return journal.close(_OPEN[journal].pop(number), end(number).record)


def open_call(journal: JournalWriter, number: int, *, metadata: dict[str, str] | None = None) -> None:
    """Open a call and end the tick: the record is in the file."""
    start(journal, number, metadata=metadata)
    journal.write_now()


def end_call(journal: JournalWriter, number: int) -> None:
    """Close a call and end the tick."""
    finish(journal, number)
    journal.write_now()


def begin_answer(journal: JournalWriter, number: int) -> None:
    """Record that the first bytes of the call's answer leave."""
    journal.answered(progress_of(key(number), BEGUN, OPENED_AT_MS + number))


def write_calls(journal: JournalWriter, *numbers: int) -> None:
    """Write complete calls, from `open` to `close`."""
    for number in numbers:
        open_call(journal, number)
        begin_answer(journal, number)
        end_call(journal, number)


def kill(journal: JournalWriter) -> None:
    """Leave what `kill -9` leaves: the files as written, the lock released, nothing else flushed."""
    os.close(journal._lock_fd)


class FakeIngest:
    """An ingest with a unique key, as control's is. `away`, `poison` and `lose_acks` make it misbehave."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, object]] = {}
        self.posts = 0
        self.predecessors: list[str | None] = []
        """The event that each request named as the one committed last."""
        self.away = False
        self.lose_acks = 0
        self.poison: str | None = None

    async def post(self, body: bytes) -> None:
        self.posts += 1
        if self.away:
            raise IngestUnavailableError("away")
        batch = orjson.loads(body)
        events = batch["events"]
        after = batch.get("after")
        self.predecessors.append(after)
        if after is not None and after not in self.events:
            raise EventsMissingError
        if any(event["idempotency_key"] == self.poison for event in events):
            raise EventsRejectedError("bad")
        for event in events:
            assert self.events.setdefault(event["idempotency_key"], event)["tokens"] == event["tokens"]
        if self.lose_acks:
            self.lose_acks -= 1
            raise IngestUnavailableError("the answer was lost")


class FakeCounters:
    """Counters that apply a settlement once: by number, per key and incarnation, as `settle.lua` does.

    While Redis is away a replay waits, or raises when `raises` says so. Concurrent replays of one incarnation fail.
    """

    def __init__(self) -> None:
        self.highest: dict[tuple[str, str], int] = {}
        self.applied: list[Settlement] = []
        self.away = False
        self.raises = False
        self.under_way: set[str] = set()

    async def replay(self, incarnation: str, settlements: list[Settlement]) -> None:
        assert incarnation not in self.under_way
        self.under_way.add(incarnation)
        try:
            await self._replay(incarnation, settlements)
        finally:
            self.under_way.discard(incarnation)

    async def _replay(self, incarnation: str, settlements: list[Settlement]) -> None:
        while self.away:
            if self.raises:
                raise CountersUnavailableError
            await asyncio.sleep(0.001)
        self.apply(incarnation, settlements)

    def apply(self, incarnation: str, settlements: list[Settlement]) -> None:
        for settlement in settlements:
            position = (settlement.reservation.key, incarnation)
            if settlement.number > self.highest.get(position, 0):
                self.highest[position] = settlement.number
                self.applied.append(settlement)


async def silent(incarnation: str) -> int:
    """The answer of a worker that does not report its settlements."""
    return 0


async def all_settled(incarnation: str) -> int:
    """The answer of a worker whose settlements reach Redis at once."""
    return 1 << 39


async def ship_all(directory: Path, ingest: FakeIngest, counters: FakeCounters | None = None) -> Shipper:
    """Run a shipper with no living worker, and assert that it ships everything."""
    shipper = Shipper(directory, ingest, counters or FakeCounters(), EAGER)
    shipper.start(tuple, silent)
    assert await shipper.drain(10)
    return shipper
