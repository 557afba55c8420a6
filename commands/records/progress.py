"""A forwarder's progress, and how it is told. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from commands.records.billing_events import Position, epoch_s


@dataclass(frozen=True, slots=True)
class Progress:
    """A forwarder's progress. `mark` is the receiver's, such as the length of its file; None before its start."""

    position: Position
    forwarded: int = 0
    repeated: int = 0
    """Events that were listed again, and not delivered again."""
    dead_letters: int = 0
    dead_letter_bytes: int | None = None
    """The length of the file of refused events; None before there was one."""
    mark: int | None = None
    in_doubt_since_s: float | None = None
    """The first time that events were sent of which it is unknown whether the receiver took them, since the epoch."""


def lag_s(progress: Progress, now_s: float) -> float:
    """Seconds between now and the end of what was delivered. It is never below the holdback of the list."""
    return max(0.0, now_s - epoch_s(progress.position.timestamp))


def progress_line(progress: Progress, now_s: float) -> str:
    parts = [f"{progress.forwarded} forwarded up to {progress.position.timestamp}"]
    if progress.dead_letters:
        parts.append(f"{progress.dead_letters} dead letters")
    if progress.repeated:
        parts.append(f"{progress.repeated} listed again")
    return ", ".join(parts) + f"; {lag_s(progress, now_s):.0f} s behind"


def status(purpose: Mapping[str, Any], progress: Progress, now_s: float) -> dict[str, Any]:
    """Return what `--status` prints."""
    return {
        **purpose,
        "forwarded_up_to": progress.position.timestamp,
        "lag_s": round(lag_s(progress, now_s), 3),
        "forwarded": progress.forwarded,
        "listed_again": progress.repeated,
        "dead_letters": progress.dead_letters,
        "in_doubt": progress.in_doubt_since_s is not None,
    }
