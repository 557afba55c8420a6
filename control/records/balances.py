"""The ledger of prepaid balances: what was paid in or withdrawn, and what calls drew. Values only."""

from decimal import Decimal
from typing import NamedTuple


class CreditRecord(NamedTuple):
    """A credit of a group's balance, in the balance's currency. One below 0 is a withdrawal.

    `key`: a ULID, that of a withdrawal's reservation. `reference`: the operator's name for it, one per group.
    `timestamp_ms`: a withdrawal is counted by it, as an event is by its own.
    """

    key: str
    group_id: str
    reference: str
    amount: Decimal
    note: str | None
    timestamp_ms: int

    @property
    def position(self) -> "EntryPosition":
        return EntryPosition(self.timestamp_ms, 1, self.key)


class HourDraws(NamedTuple):
    """The draws of the calls through a slug in the UTC hour that starts at `hour_ms`. `units`: 10^-22 of the currency.

    Calls that draw nothing are in none.
    """

    group_id: str
    hour_ms: int
    slug: str
    calls: int
    units: int

    @property
    def position(self) -> "EntryPosition":
        return EntryPosition(self.hour_ms, 0, self.slug)


class EntryPosition(NamedTuple):
    """The place of an entry in the ledger. `is_credit`: 1, or 0 for a draw. `name`: a credit's key, a draw's slug."""

    at_ms: int
    is_credit: int
    name: str


Entry = CreditRecord | HourDraws
