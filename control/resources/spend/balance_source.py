"""The counters of prepaid balances, as the resources need them: `SpendHashes` of the Redis edge."""

from typing import Protocol

from control.records.spend import BalanceReading, Withdrawal


class BalanceSource(Protocol):
    """Reads what is drawn and reserved of a balance, and reserves withdrawals.

    Raises `UsageUnavailableError` while Redis does not answer, and `SpendNotCountedError`, which is one, while what is
    drawn is not counted there.
    """

    async def balance_of(self, tree_key: str, currency: str, group_id: str) -> BalanceReading:
        """Read the balance of a group. `tree_key`: the hash of its tree."""
        ...

    async def withdraw(self, withdrawal: Withdrawal) -> bool:
        """Reserve a withdrawal until it is counted. False: less than its amount is available. The same again is one.

        Raises `SpendNotCountedError` also while reservations may be missing. After any error it may be reserved.
        """
        ...

    async def give_back_withdrawal(self, tree_key: str, key: str) -> None:
        """Release a withdrawal that is not in the database, and cannot come there any more.

        Without this the sweep releases it after two minutes, so leave it where that is not certain.
        """
        ...
