"""The refusal of a call by a limit that is reached, or by a balance without credit. Pure.

See docs/reference/limits.md#admission, docs/reference/money.md#spend-limits and docs/reference/money.md#balances.
"""

from policy.limits.effective import Plan
from policy.prices import amount_text
from policy.spend.effective import BalanceBound
from policy.spend.limits import SpendLimit
from policy.spend.spend_hash import amount_of_picos
from proxy.accounting.reservations import LimitHit
from proxy.accounting.spend_taken import SpendHit
from proxy.refusals import (
    AboveSpendLimitError,
    BalanceExhaustedError,
    LimitExceededError,
    SpendLimitExceededError,
)


def limit_refusal(plan: Plan, hit: LimitHit) -> LimitExceededError:
    """Name type, unit, threshold and what was called, but no group: the limit may belong to another's group.

    Of calls in flight no unit, which means nothing there.
    """
    limit = hit.bound.limit
    kind = "Rate limit" if limit.is_rate else "Usage limit"
    per = "" if limit.type.is_concurrent else f" per {limit.unit.value}"
    message = f"{kind} exceeded for {plan.slug}: {limit.threshold} {limit.type.value}{per}"
    return LimitExceededError(message, (("retry-after", str(hit.retry_after_s)),))


def spend_refusal(hit: SpendHit) -> SpendLimitExceededError | BalanceExhaustedError:
    """Name a limit's unit, amount and currency, but no group. Of a balance nothing: it may be another group's."""
    if isinstance(hit.bound, BalanceBound):
        return BalanceExhaustedError()  # without `Retry-After`: time alone brings no credit
    limit = hit.bound.limit
    message = f"Spend limit exceeded: {amount_text(limit.amount)} {limit.currency} per {limit.unit.value}"
    return SpendLimitExceededError(message, (("retry-after", str(hit.retry_after_s)),))


def above_limit_refusal(least_picos: int, limit: SpendLimit) -> AboveSpendLimitError:
    """Name what the call can cost (10^-12) with the lowest output cap, and the limit that no window of it can hold."""
    cost = amount_text(amount_of_picos(least_picos))
    amount = f"{amount_text(limit.amount)} {limit.currency} per {limit.unit.value}"
    return AboveSpendLimitError(
        f"The call can cost up to {cost} {limit.currency} with the lowest output cap, and a spend limit is {amount};"
        " send less input, or ask for fewer answers or a smaller thinking budget"
    )
