"""The calls that a directory of journals still holds: to be compared with control's events (`events reconcile`).

Reads only, beside a running supervisor. It reads the journals before the shipped events, in which their calls appear
next, so a call that moves meanwhile is found twice rather than never.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from proxy.accounting.recovery import join_events
from proxy.edges.journal.supervisor.delivery import REJECTED_NAME
from proxy.edges.journal.supervisor.journal_reader import JournalReader
from proxy.edges.journal.supervisor.shipped_events import DIRECTORY_NAME, events_of, names_in, records_in

_READ_AT_ONCE = 1000
_TRIES = 5
_SHOWN = (
    *("idempotency_key", "workspace_id", "external_entity_id", "api_key_prefix", "request_id", "model_slug"),
    *("ended_at_ms", "status", "tokens", "source", "service_tier", "details"),
)


class NoJournalError(Exception):
    """Raised if the directory of journals does not exist."""


def dumped_calls(directory: Path) -> Iterator[str]:
    """JSON lines `{"kept", "event"}`. `kept`: `journal` (ended, not known to be committed), `open` (not ended),
    `shipped` (committed) or `rejected` (refused by control). No metadata: it is the customers'."""
    if not directory.is_dir():
        raise NoJournalError(f"{directory}: there is no such directory; name the proxy's TOLLGATE_JOURNAL_DIR")
    for folder in sorted(directory.iterdir()):
        if folder.is_dir() and not folder.name.startswith("."):
            yield from _of_worker(folder)
    yield from _rejected(directory / REJECTED_NAME)
    yield from _shipped(directory / DIRECTORY_NAME)


def _of_worker(folder: Path) -> Iterator[str]:
    """Read a worker's journal. If the supervisor deletes segments meanwhile, read again from the position it saved."""
    for _ in range(_TRIES):
        reader = None
        try:
            reader = JournalReader(folder)
            while ended := reader.read(_READ_AT_ONCE):
                yield from (_line("journal", event) for event in join_events(ended))
            for opened in reader.ledger.open.values():
                yield _line("open", opened.partition(b"\n")[0] + b"}")
        except FileNotFoundError:
            continue
        finally:
            if reader is not None:
                reader.release()
        return


def _shipped(directory: Path) -> Iterator[str]:
    for name in names_in(directory) if directory.is_dir() else []:
        try:
            for record in records_in(directory / name):
                yield from (_line("shipped", event) for event in events_of(record))
        except FileNotFoundError:  # too old meanwhile
            continue


def _rejected(path: Path) -> Iterator[str]:
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                yield _line("rejected", line)


def _line(source: str, event: bytes) -> str:
    wire: dict[str, Any] = orjson.loads(event)
    members = {name: wire[name] for name in _SHOWN if name in wire}
    return orjson.dumps({"kept": source, "event": members}).decode()
