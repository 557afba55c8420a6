"""Numbers and deadlines of takes, so that a take whose reply is late or lost can be returned. Pure.

A take refuses itself after its deadline, or when its number was revoked. After a lost connection a worker revokes its
unanswered takes: none of them can run any more, and the reply lists those that did. The reference for revoke.lua.

See docs/reference/limits.md#returned-reservations.
"""

from dataclasses import dataclass
from typing import NamedTuple

NO_DEADLINE_MS = 2**53 - 1


class TakeStamp(NamedTuple):
    """The numbers that a take carries. `number` rises per incarnation. All takes up to `answered_through` have been
    answered. `deadline_ms` is by Redis' clock the last millisecond in which the take may run."""

    incarnation: str
    number: int
    answered_through: int
    deadline_ms: int = NO_DEADLINE_MS


class TakeRecord(NamedTuple):
    """A take that ran: its time, and how many requests it admitted."""

    number: int
    at_ms: int
    admitted: int


@dataclass(frozen=True, slots=True)
class TakeLog:
    """The takes of one incarnation in a hash: the number up to which they are revoked, and the unanswered ones."""

    revoked_through: int = 0
    records: tuple[TakeRecord, ...] = ()

    def refuses(self, stamp: TakeStamp, clock_ms: int) -> bool:
        """Return whether the take is late or revoked. `clock_ms`: Redis' clock itself, which may step back."""
        return clock_ms > stamp.deadline_ms or stamp.number <= self.revoked_through

    def with_take(self, stamp: TakeStamp, at_ms: int, admitted: int) -> "TakeLog":
        """Adds a take that has just run; drops those that have been answered."""
        unanswered = tuple(record for record in self.records if record.number > stamp.answered_through)
        return TakeLog(self.revoked_through, (TakeRecord(stamp.number, at_ms, admitted), *unanswered))

    def revoked(self, through: int) -> "TakeLog":
        """Refuses every take up to `through`. Keeps the records, so that a repeated revocation gets the same reply."""
        return TakeLog(max(self.revoked_through, through), self.records)
