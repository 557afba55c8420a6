"""A worker's side of spend limits that Redis has lost: it reserves again what its calls have reserved, and says so.

See docs/reference/money.md#how-spend-is-counted.
"""

from collections.abc import Mapping
from typing import Protocol

from proxy.edges.process.channel import Message, SupervisorLink


class RebuildableSpend(Protocol):
    """`RedisSpend`, as far as it is rebuilt.

    `may_reserve`: control knows this machine, so HARD limits may admit calls. `rebuilt`: by hash key, the state of
    each tree that has all reservations of this worker, and of which it believes no other server's admissions.
    """

    may_reserve: bool

    @property
    def rebuilt(self) -> Mapping[str, str]: ...
    def rebuild(self, states: Mapping[str, str], /) -> None:
        """Reserve again in these trees. `states`: by hash key, the state to be named in `rebuilt` then."""
        ...


class WrittenJournal(Protocol):
    """See `JournalWriter`."""

    @property
    def place(self) -> tuple[int, int] | None: ...
    def write_now(self) -> None: ...


class SpendRebuilding:
    """Takes the supervisor's messages, and makes a part of the worker's health."""

    def __init__(self, spend: RebuildableSpend, journal: WrittenJournal, link: SupervisorLink) -> None:
        self._spend = spend
        self._journal = journal
        link.on_spend(self.received)

    def received(self, message: Message) -> None:
        """Take a message: control knows this machine, and these trees are to be rebuilt."""
        self._spend.may_reserve = True
        self._spend.rebuild(message["waiting"])

    def health(self) -> Message:
        """The trees that are rebuilt, and the end of the journal.

        The ends of calls whose reservations were not put again, because they had ended, are before it.
        """
        rebuilt = dict(self._spend.rebuilt)
        self._journal.write_now()
        return {"rebuilt": rebuilt, "journal_place": self._journal.place}
