"""The counters of prepaid balances in memory: what is drawn and reserved, and withdrawals."""

from control.errors import UsageUnavailableError
from control.records.spend import BalanceReading, Withdrawal
from policy.spend.spend_hash import UNITS_PER_PICO, picos_of_amount


class FakeBalances:
    """A `BalanceSource`. `drawn`: units by group. `calls`: 10^-12 that calls reserve, by group.

    `trouble`: raised by every question. `lost`: `withdraw` reserves, and raises this.
    """

    def __init__(self) -> None:
        self.counted_ms = 0
        self.drawn: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self.withdrawals: dict[str, Withdrawal] = {}
        self.given_back: list[str] = []
        self.trouble: UsageUnavailableError | None = None
        self.late_trouble: UsageUnavailableError | None = None

    def count(self, through_ms: int) -> None:
        """Count all withdrawals that are reserved."""
        for withdrawal in self.withdrawals.values():
            units = picos_of_amount(withdrawal.amount) * UNITS_PER_PICO
            self.drawn[withdrawal.group_id] = self.drawn.get(withdrawal.group_id, 0) + units
        self.withdrawals.clear()
        self.counted_ms = through_ms

    async def balance_of(self, tree_key: str, currency: str, group_id: str) -> BalanceReading:
        self._check()
        return BalanceReading(self.counted_ms, self.drawn.get(group_id, 0), self._reserved(group_id))

    async def withdraw(self, withdrawal: Withdrawal) -> bool:
        self._check()
        if withdrawal.key in self.withdrawals:
            return True
        group_id = withdrawal.group_id
        drawn = -(-self.drawn.get(group_id, 0) // UNITS_PER_PICO)
        total = drawn + self._reserved(group_id) + picos_of_amount(withdrawal.amount)
        if total > picos_of_amount(withdrawal.deposited):
            return False
        self.withdrawals[withdrawal.key] = withdrawal
        if self.late_trouble is not None:
            raise self.late_trouble
        return True

    async def give_back_withdrawal(self, tree_key: str, key: str) -> None:
        self._check()
        self.withdrawals.pop(key, None)
        self.given_back.append(key)

    def _reserved(self, group_id: str) -> int:
        picos = (picos_of_amount(one.amount) for one in self.withdrawals.values() if one.group_id == group_id)
        return self.calls.get(group_id, 0) + sum(picos)

    def _check(self) -> None:
        if self.trouble is not None:
            raise self.trouble
