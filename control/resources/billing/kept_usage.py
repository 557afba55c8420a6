"""The windows that can be reported: those whose events are kept, and whole hours whose sums are kept."""

from dataclasses import dataclass

from control.edges.sql.billing.hourly_progress import SummedHours
from control.errors import InvalidFieldError
from control.records.events import EventWindow
from control.records.times import time_text


@dataclass(frozen=True, slots=True)
class KeptUsage:
    """The usage of a workspace that is still kept: its hourly sums, and events and sums from these times on."""

    summed: SummedHours
    events_from_ms: int
    sums_from_ms: int

    @property
    def from_ms(self) -> int:
        """The start of the time whose days and hours can be reported whole."""
        return min(self.events_from_ms, max(self.summed.start_ms, self.sums_from_ms))

    def check(self, window: EventWindow) -> None:
        """Refuse a window whose sums would be too low.

        Events that are not added to sums yet are not deleted.
        """
        if window.start_ms < min(self.sums_from_ms, window.end_ms):
            reason = f"sums before {time_text(self.sums_from_ms)} are deleted (TOLLGATE_USAGE_RETENTION_DAYS)"
            raise InvalidFieldError("start", f"{reason}; start later")
        parts = self.summed.parts_of(window)
        for field, part in (("start", parts.before), ("end", parts.after)):
            if part.start_ms < min(self.events_from_ms, self.summed.end_ms, part.end_ms):
                raise InvalidFieldError(field, self._reason())

    def _reason(self) -> str:
        deleted = f"events before {time_text(self.events_from_ms)} are deleted (TOLLGATE_EVENT_RETENTION_DAYS)"
        if self.from_ms == self.events_from_ms:
            return f"{deleted}, so sums would be too low; start later"
        return f"{deleted}; before then a report has whole hours only, from {time_text(self.from_ms)} on"
