"""The troubles for which a journal refuses calls. Each is logged at most once per interval.

Promises that a nearly full disk, which fails and recovers with every call, does not flood the log. Does no I/O.
"""

import logging
import time

from proxy.errors import JournalUnavailableError
from runtime.exhaustion import is_out_of_descriptors, out_of_descriptors

_NO_DESCRIPTOR = "no file descriptor is left for a segment"
log = logging.getLogger(__name__)


class Troubles:
    """The texts of the present troubles, by kind. Set and cleared on the event loop and on the syncing thread."""

    def __init__(self, log_interval_s: float) -> None:
        self._log_interval_s = log_interval_s
        self._logged_at: dict[str, float] = {}
        self.texts: dict[str, str] = {}

    @property
    def faults(self) -> tuple[str, ...]:
        """The troubles that make this machine's proxy not ready. A lack of descriptors is none: it passes."""
        return tuple(text for text in self.texts.values() if text != _NO_DESCRIPTOR)

    def refusal(self, otherwise: str = "") -> Exception:
        """The exception for a call that is refused. `otherwise`: why, if there is no trouble."""
        faults = self.faults
        return out_of_descriptors() if self.texts and not faults else JournalUnavailableError(*faults or (otherwise,))

    def cannot_allocate(self, error: OSError) -> None:
        """Note that there is no next segment. A lack of descriptors is logged by whoever answers the calls."""
        if is_out_of_descriptors(error):
            self.texts["allocate"] = _NO_DESCRIPTOR
        else:
            self.set("allocate", f"the journal cannot allocate a segment: {error.strerror}")

    def set(self, kind: str, text: str) -> None:
        """Note a trouble, in place of an earlier one of its kind."""
        if kind not in self.texts and self._may_log(kind):
            log.error(
                "Journal trouble: %s; new calls are answered 503 while their records cannot be written. Free space on"
                " the disk of TOLLGATE_JOURNAL_DIR or replace it. For a full backlog, check that control is reachable.",
                text,
            )
        self.texts[kind] = text

    def clear(self, kind: str) -> None:
        """Note that this trouble is over, if there was one."""
        if self.texts.pop(kind, None) and self._may_log(f"{kind} recovered"):
            log.warning("The journal has recovered from its %s trouble; new calls are accepted again.", kind)

    def _may_log(self, line: str) -> bool:
        now = time.monotonic()
        if now - self._logged_at.get(line, -self._log_interval_s) < self._log_interval_s:
            return False
        self._logged_at[line] = now
        return True
