"""The meaning of a journal's records: which calls to bill, what to settle, and what a crash left open.

Pure: turns records, in order, into events and settlements, the same ones on each replay. An open and its close hold the
two halves of the event's JSON, so shipping decodes nothing. `edges/journal/supervisor/shipper.py` does the I/O.

See docs/reference/events-and-webhooks.md#crashes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any
from zlib import crc32

import orjson

from policy.billing import COUNTED, NO_DETAILS, Tokens, event_details, event_end, join_event
from policy.limits.settlement import Estimate, Reservation, Settlement
from proxy.accounting.journal_records import HEAD_BYTES, Kind, frames, pack_head

ORPHAN_STATUS = 502
"""The status of a call that died with its worker."""

WITHDRAWN_STATUS = 0
"""The status of a call that was shed before a byte of it was sent, although it had been journaled. It has no event."""

ORPHAN_NUMBERS_FROM = 1 << 40
"""First settlement number of orphans: above all numbers of live workers, and the same on each replay."""


Halves = tuple[bytes, bytes]
"""An ended call: the payloads of its open and close records."""

_OPEN = Kind.OPEN
_PROGRESS = Kind.PROGRESS
_CLOSE = Kind.CLOSE  # an enum look-up costs as much as a checksum
_OPEN_MAGIC = _OPEN.magic
_OPEN_SEED = _OPEN.seed
_CLOSE_MAGIC = _CLOSE.magic
_CLOSE_SEED = _CLOSE.seed
_WITHDRAWN = b'"status":%d,' % WITHDRAWN_STATUS
_NOTHING_DELIVERED = event_details(NO_DETAILS, COUNTED)
_KEY_BYTES = 26
_KEY_AT = len(b'{"idempotency_key":"')
_KEY_TO = _KEY_AT + _KEY_BYTES
_REST_AT = _KEY_BYTES + len(b"\n")
_TIME_AT = _REST_AT + len(b'"ended_at_ms":')

_WITHOUT_MARGIN = itemgetter(slice(Reservation._fields.index("margin_tokens")))
_MARGIN_AT = len(Tokens._fields)


def open_record(
    *, start: bytes, opened_at_ms: int, estimate: Estimate, reservations: tuple[Reservation, ...] = ()
) -> bytes:
    """An admitted call before dispatch: everything needed to bill and settle it after a crash.

    Two lines: `start`, the first half of the event (`event_start`), its key first; then the time, the estimate and the
    reservations. Reading relies on the key's length, that of a ULID. The estimate is written as `Tokens`, and behind it
    what older versions do not know and do not read, after a rollback: its margin, then the figures of its output.
    """
    figures = (estimate.expected, 0, 0, *estimate[1:])
    payload = start + b"\n" + orjson.dumps((opened_at_ms, figures, tuple(map(_WITHOUT_MARGIN, reservations))))
    return pack_head(_OPEN_MAGIC, len(payload), crc32(payload, _OPEN_SEED)) + payload


def progress_record(event_key: str, end: bytes) -> bytes:
    """Two lines: the key, then the end of the event as it would be by now (`event_end`)."""
    payload = b"%b\n%b" % (event_key.encode(), end)
    return pack_head(_PROGRESS.magic, len(payload), crc32(payload, _PROGRESS.seed)) + payload


def close_record(*, event_key: str, end: bytes, numbers: tuple[int, ...] = ()) -> bytes:
    """Return the record of a call's end. `numbers`: the settlement numbers of its reservations, in order.

    Three lines: the key, the second half of the event (`event_end`), the numbers. The event's status is
    `WITHDRAWN_STATUS` if the call was not sent.
    """
    payload = b"%b\n%b\n%b" % (event_key.encode(), end, orjson.dumps(numbers))
    return pack_head(_CLOSE_MAGIC, len(payload), crc32(payload, _CLOSE_SEED)) + payload


def join_events(calls: Iterable[Halves]) -> list[bytes]:
    """The events of these calls, as ingest takes them: both halves of each, joined. Withdrawn calls have none."""
    return [
        join_event(opened.partition(b"\n")[0], closed.split(b"\n", 2)[1])
        for opened, closed in calls
        if _WITHDRAWN not in closed
    ]


def settlements_of(calls: Iterable[Halves]) -> list[Settlement]:
    """The settlements of these calls, in the order of the calls."""
    return [settlement for opened, closed in calls for settlement in _settlements(opened, closed)]


def _settlements(opened: bytes, closed: bytes) -> list[Settlement]:
    _, rest, numbers = closed.split(b"\n", 2)
    tokens = Tokens.from_wire(orjson.loads(b"{" + rest)["tokens"])
    return [
        Settlement(reservation=reservation, number=number, actual_tokens=reservation.type.amount(tokens))
        for reservation, number in zip(_opening(opened)[1], orjson.loads(numbers), strict=False)
    ]


def _opening(opened: bytes) -> tuple[int, list[Reservation]]:
    """The estimated input and the reservations of an open record. An older proxy's reservations have no margin.

    The first figure is input alone only in an older proxy's record, and only its ANSWERED records ask for it.
    """
    _, figures, reservations = orjson.loads(opened.partition(b"\n")[2])
    estimate = Estimate(figures[0], *figures[_MARGIN_AT:])
    return figures[0], [Reservation.from_wire(reservation, estimate) for reservation in reservations]


@dataclass(slots=True)
class Ledger:
    """The open calls of one worker incarnation, as its records are read in order."""

    open: dict[bytes, bytes] = field(default_factory=dict)
    """Payloads of open records by event key."""
    answered: dict[bytes, bytes] = field(default_factory=dict)
    """Payload of the last progress record by event key; empty if an older worker only marked the answer's start."""
    latest_ms: int = 0
    """The time of the last record that has one. An orphan counts as ended then."""
    last_number: int = 0
    """The highest settlement number of an ended call. Numbers rise with the ends."""
    unmatched: int = 0
    """Closes without an open record: only damage in the middle of a journal causes that."""

    def feed(self, data: bytes, ended: list[Halves], limit: int) -> tuple[int, bool]:
        """Read the records at the start of `data` until `ended`, which it extends, holds `limit` calls.

        Returns how many bytes it read, and whether the journal continues in the next segment.
        """
        first = len(ended)
        offset = 0
        over = False
        timed = None
        calls = self.open
        answered = self.answered
        for kind, payload, following in frames(data):
            if kind is _OPEN:
                calls[payload[_KEY_AT:_KEY_TO]] = timed = payload
            elif kind is _CLOSE:
                key = payload[:_KEY_BYTES]
                timed = payload
                answered.pop(key, None)
                if (opened := calls.pop(key, None)) is not None:
                    ended.append((opened, payload))
                else:
                    self.unmatched += 1
            elif kind is _PROGRESS:
                timed = payload
                if (key := payload[:_KEY_BYTES]) in calls:
                    answered[key] = payload[_REST_AT:]
            elif kind is Kind.ANSWERED:
                if payload in calls:
                    answered[payload] = b""
            else:
                over = True
                break
            offset = following
            if len(ended) >= limit:
                break
        self._note(timed, ended[first:])
        return offset, over

    def _note(self, timed: bytes | None, ended: list[Halves]) -> None:
        """Keep the maxima, which the last record of a batch carries."""
        if timed is not None:
            self.latest_ms = _time_of(timed)
        for _, closed in reversed(ended):
            if numbers := orjson.loads(closed.rpartition(b"\n")[2]):
                self.last_number = max(numbers)
                return

    def orphans(self) -> list[Halves]:
        """The calls that died with their worker, ordered by key; the same on each replay.

        Billed as the last progress record says, or zero if no answer had begun.
        """
        last_numbers = dict[str, int]()
        ended = []
        for event_key, opened in sorted(self.open.items()):
            estimated_input, reservations = _opening(opened)
            tokens, details = _last_known(self.answered.get(event_key), estimated_input)
            numbers = tuple(_next_number(last_numbers, reservation.key) for reservation in reservations)
            end = event_end(self.latest_ms, ORPHAN_STATUS, tokens, details)
            closed = close_record(event_key=event_key.decode(), end=end, numbers=numbers)
            ended.append((opened, closed[HEAD_BYTES:]))
        return ended

    def to_wire(self) -> dict[str, Any]:
        """The state that a reader must save to continue from here after a restart."""
        opened = []
        for event_key, payload in self.open.items():
            progress = self.answered.get(event_key)
            opened.append((payload.decode(), None if progress is None else progress.decode()))
        return {"open": opened, "latest_ms": self.latest_ms}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "Ledger":
        """Read a ledger. Also reads that of an older proxy, which only recorded whether an answer had begun."""
        ledger = cls(latest_ms=wire["latest_ms"])
        for text, progress in wire["open"]:
            opened = text.encode()
            event_key = opened[_KEY_AT:_KEY_TO]
            ledger.open[event_key] = opened
            if isinstance(progress, str):
                ledger.answered[event_key] = progress.encode()
            elif progress:
                ledger.answered[event_key] = b""
        return ledger


def _last_known(progress: bytes | None, estimated_input: int) -> tuple[Tokens, bytes]:
    """The tokens billed for an orphan, and the end of its event (`event_details`).

    `progress`: the rest of its last progress record, or empty (older workers). Those of workers before there were
    details end with the tokens.
    """
    if progress is None:
        return Tokens(), _NOTHING_DELIVERED
    if not progress:  # no counted output: bill the input of the estimate alone
        return Tokens(input=estimated_input), _NOTHING_DELIVERED
    tokens, bracket, details = progress.partition(b"]")
    return Tokens.from_wire(orjson.loads(b"{%b%b}" % (tokens, bracket))["tokens"]), details


def _time_of(payload: bytes) -> int:
    """The time at which a call was opened or ended."""
    start = payload.index(b"\n[") + len(b"\n[") if payload.startswith(b"{") else _TIME_AT
    return int(payload[start : payload.index(b",", start)])


def _next_number(last_numbers: dict[str, int], key: str) -> int:
    last_numbers[key] = last_numbers.get(key, ORPHAN_NUMBERS_FROM) + 1
    return last_numbers[key]
