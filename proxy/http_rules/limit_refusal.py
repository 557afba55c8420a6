"""The refusal of a call by a limit that is reached, or by a balance without credit. Pure.

See docs/reference/limits.md#admission, docs/reference/money.md#spend-limits and docs/reference/money.md#balances.
"""

from policy.limits.effective import Plan
from policy.prices import amount_text
from policy.spend.effective import BalanceBound, SpendBound
from policy.spend.key_names import key_of_name
from policy.spend.spend_hash import amount_of_picos
from proxy.accounting.reservations import BALANCE, SPEND, LimitHit
from proxy.accounting.spend_taken import SpendHit
from proxy.answers import RefusingLimit
from proxy.refusals import (
    AboveSpendLimitError,
    BalanceExhaustedError,
    LimitExceededError,
    SpendLimitExceededError,
)


def limit_refusal(plan: Plan, hit: LimitHit, workspace_id: str) -> LimitExceededError:
    """Name type, unit, threshold and the slug or the key, but no group: the limit may belong to another's group.

    Of calls in flight no unit, which means nothing there. The operator's log names the group, unless the limit is the
    workspace's own.
    """
    limit = hit.bound.limit
    kind = "Rate limit" if limit.is_rate else "Usage limit"
    per = "" if limit.type.is_concurrent else f" per {limit.unit.value}"
    bound = plan.slug if key_of_name(hit.bound.counting_group) is None else "this key"
    message = f"{kind} exceeded for {bound}: {limit.threshold} {limit.type.value}{per}"
    refusal = LimitExceededError(message, (("retry-after", str(hit.retry_after_s)),))
    group = hit.bound.source_group
    kind_of_limit = (limit.type.value, limit.unit.value, str(limit.threshold))
    refusal.limit = RefusingLimit("" if group == workspace_id else group, *kind_of_limit)
    return refusal


def spend_refusal(hit: SpendHit) -> SpendLimitExceededError | BalanceExhaustedError:
    """Name a limit's unit, amount and currency, but no group. Of a balance nothing: it may be another group's."""
    refusal: SpendLimitExceededError | BalanceExhaustedError
    if isinstance(hit.bound, BalanceBound):
        refusal = BalanceExhaustedError()  # without `Retry-After`: time alone brings no credit
        refusal.limit = RefusingLimit(hit.bound.group_id, BALANCE, "", "")
        return refusal
    limit = hit.bound.limit
    bound = "" if key_of_name(hit.bound.counting_group) is None else " for this key"
    message = f"Spend limit exceeded{bound}: {amount_text(limit.amount)} {limit.currency} per {limit.unit.value}"
    refusal = SpendLimitExceededError(message, (("retry-after", str(hit.retry_after_s)),))
    refusal.limit = _refusing_spend_limit(hit.bound)
    return refusal


def above_limit_refusal(least_picos: int, bound: SpendBound) -> AboveSpendLimitError:
    """Name what the call can cost (10^-12) with the lowest output cap, and the limit that no window of it can hold."""
    limit = bound.limit
    cost = amount_text(amount_of_picos(least_picos))
    amount = f"{amount_text(limit.amount)} {limit.currency} per {limit.unit.value}"
    refusal = AboveSpendLimitError(
        f"The call can cost up to {cost} {limit.currency} with the lowest output cap, and a spend limit is {amount};"
        " send less input, or ask for fewer answers or a smaller thinking budget"
    )
    refusal.limit = _refusing_spend_limit(bound)
    return refusal


def _refusing_spend_limit(bound: SpendBound) -> RefusingLimit:
    return RefusingLimit(bound.source_group, SPEND, bound.limit.unit.value, amount_text(bound.limit.amount))
