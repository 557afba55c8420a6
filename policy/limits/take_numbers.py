"""Takes whose answer is late or lost: what each carries, and what a hash remembers of it until it was answered.

A take refuses itself once its deadline is past or its number was revoked. After a lost connection a worker revokes its
unanswered takes: none of them can run any more, and it learns which ones did, and when, so that it can give them back.
The reference for `take.lua` and `revoke.lua`: same rules, no I/O, no clock.
"""

from dataclasses import dataclass
from typing import NamedTuple

NO_DEADLINE_MS = 2**53 - 1


class TakeStamp(NamedTuple):
    """What a take carries. `number`: rising per incarnation. `answered`: the highest number below which all answers are
    known. `deadline_ms`: by Redis' clock, the last millisecond in which the take may run."""

    incarnation: str
    number: int
    answered: int
    deadline_ms: int = NO_DEADLINE_MS


class TakeRecord(NamedTuple):
    """A take that ran: when, and how many of its requests it admitted."""

    number: int
    at_ms: int
    admitted: int


@dataclass(frozen=True, slots=True)
class TakeLog:
    """What one hash knows of one incarnation's takes: which may not run any more, and the unanswered ones that ran."""

    revoked_through: int = 0
    records: tuple[TakeRecord, ...] = ()

    def refuses(self, stamp: TakeStamp, clock_ms: int) -> bool:
        """Whether a take is too late: by the clock itself, which unlike the counters' time may step back."""
        return clock_ms > stamp.deadline_ms or stamp.number <= self.revoked_through

    def with_take(self, stamp: TakeStamp, at_ms: int, admitted: int) -> "TakeLog":
        """With a take that has just run; without those whose answers are known."""
        unanswered = tuple(record for record in self.records if record.number > stamp.answered)
        return TakeLog(self.revoked_through, (TakeRecord(stamp.number, at_ms, admitted), *unanswered))

    def revoked(self, through: int) -> "TakeLog":
        """With no take up to `through` able to run. The records stay: a repeated revocation learns the same."""
        return TakeLog(max(self.revoked_through, through), self.records)
