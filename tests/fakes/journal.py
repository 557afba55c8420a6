"""The journal in memory: a fake of `proxy/edges/journal/writer.py`. `entries`: the records, in order."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from policy.billing import (
    COUNTED,
    NO_DETAILS,
    Details,
    Payer,
    Tokens,
    event_details,
    event_end,
    event_start,
    payer_members,
)
from policy.limits.settlement import Estimate, Reservation
from proxy.accounting.journal_records import HEAD_BYTES
from proxy.accounting.journaled_call import JournaledCall, UnwrittenRecord
from proxy.accounting.recovery import ORPHAN_STATUS, close_record, open_record, progress_record
from proxy.errors import JournalUnavailableError


@dataclass(kw_only=True)
class OpenedCall:
    """The contents of an open record."""

    event_key: str
    workspace_id: str
    group_id: str
    external_entity_id: str
    api_key_prefix: str
    request_id: str
    model_slug: str
    request_metadata: Mapping[str, Any] | None
    opened_at_ms: int
    estimate: Estimate
    reservations: tuple[Reservation, ...] = ()
    group_path: str = ""
    balance_group: str = ""

    @property
    def record(self) -> bytes:
        payer = Payer(
            self.workspace_id,
            self.group_id,
            self.external_entity_id,
            self.api_key_prefix,
            self.model_slug,
            self.group_path,
            self.balance_group,
        )
        start = event_start(
            idempotency_key=self.event_key,
            payer=payer_members(payer),
            request_id=self.request_id,
            request_metadata=self.request_metadata,
        )
        return open_record(
            start=start, opened_at_ms=self.opened_at_ms, estimate=self.estimate, reservations=self.reservations
        )

    @classmethod
    def of(cls, record: bytes) -> "OpenedCall":
        """The inverse of `record`."""
        start, rest = record[HEAD_BYTES:].split(b"\n")
        event = json.loads(start + b"}")
        opened_at_ms, (expected, _, _, *more), reservations = json.loads(rest)
        estimate = Estimate(expected, *more)
        return cls(
            event_key=event.pop("idempotency_key"),
            opened_at_ms=opened_at_ms,
            estimate=estimate,
            reservations=tuple(Reservation.from_wire(reservation, estimate) for reservation in reservations),
            **event,
        )


@dataclass(kw_only=True)
class ClosedCall:
    """The contents of a close record."""

    event_key: str
    status: int
    tokens: Tokens
    ended_at_ms: int
    numbers: tuple[int, ...] = ()
    details: Details = NO_DETAILS
    source: str = COUNTED
    is_count: bool = False

    @property
    def record(self) -> bytes:
        details = event_details(self.details, self.source, is_count=self.is_count)
        end = event_end(self.ended_at_ms, self.status, self.tokens, details)
        return close_record(event_key=self.event_key, end=end, numbers=self.numbers)

    @classmethod
    def of(cls, record: bytes) -> "ClosedCall":
        """The inverse of `record`."""
        event_key, end, numbers = record[HEAD_BYTES:].split(b"\n")
        event = json.loads(b"{" + end)
        tokens = Tokens.from_wire(event.pop("tokens"))
        tier = event.pop("service_tier", "")
        details = Details(*event.pop("details", ()))._replace(service_tier=tier)
        key = event_key.decode()
        return cls(event_key=key, tokens=tokens, details=details, numbers=tuple(json.loads(numbers)), **event)


def progress_of(event_key: str, tokens: Tokens, now_ms: int, details: Details = NO_DETAILS) -> bytes:
    """The progress record of an answer without a report."""
    return progress_record(event_key, event_end(now_ms, ORPHAN_STATUS, tokens, event_details(details, COUNTED)))


@dataclass
class FakeJournal:
    """`full`: new calls are refused."""

    opened: list[OpenedCall] = field(default_factory=list)
    progressed: list[tuple[str, Tokens]] = field(default_factory=list)
    closed: list[ClosedCall] = field(default_factory=list)
    entries: list[str] = field(default_factory=list)
    open_records: list[bytes] = field(default_factory=list)
    full: bool = False
    calls: dict[JournaledCall, str] = field(default_factory=dict)
    """Event keys of the open calls."""

    def open(self, record: bytes) -> JournaledCall:
        if self.full:
            raise JournalUnavailableError
        self.opened.append(OpenedCall.of(record))
        self.entries.append("open")
        self.open_records.append(record)
        call = JournaledCall()
        call.tell()
        self.calls[call] = self.opened[-1].event_key
        return call

    def answered(self, record: bytes) -> None:
        self._note_progress(record)
        self.entries.append("answered")

    def progress(self, records: Sequence[bytes]) -> None:
        for record in records:
            self._note_progress(record)
            self.entries.append("progress")

    def _note_progress(self, record: bytes) -> None:
        event_key, rest = record[HEAD_BYTES:].split(b"\n")
        self.progressed.append((event_key.decode(), Tokens.from_wire(json.loads(b"{" + rest)["tokens"])))

    def close(self, call: JournaledCall, record: bytes) -> UnwrittenRecord | None:
        self.closed.append(ClosedCall.of(record))
        assert self.calls.pop(call) == self.closed[-1].event_key
        self.entries.append("close")
        return None


def written(record: UnwrittenRecord) -> asyncio.Future[None]:
    """Done when the journal has the record, or with why it was refused."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def go_on(refused: Exception | None) -> None:
        if future.done():  # the call was cancelled
            return
        if refused is None:
            future.set_result(None)
        else:
            future.set_exception(refused)

    record.then(go_on)
    return future
