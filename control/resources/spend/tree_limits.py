"""The rules for the spend limits of a group and of its tree (docs/reference/management-api.md#spend-limits).

Those that span groups are checked with the tree locked, inside the transaction that saves.
"""

from collections.abc import Sequence

from control.edges.sql import group_rows
from control.edges.sql.store import WriteTx
from control.errors import InvalidFieldError, OtherCurrencyError
from control.records.policy import GroupRecord
from control.resources.limits.cascade import check_amounts
from policy.limits.groups import Enforcement
from policy.limits.kinds import USAGE_UNITS
from policy.spend.limits import (
    IllegalSpendLimitsError,
    SpendLimit,
    TreeCurrencyError,
    check_currency,
    check_spend_limits,
)


def checked_spend_limits(limits: Sequence[SpendLimit]) -> tuple[SpendLimit, ...]:
    """The spend limits of one group, DAY before MONTH. Raises `InvalidFieldError` if they break a rule."""
    try:
        check_spend_limits(limits)
        check_currency(limits)
    except (IllegalSpendLimitsError, TreeCurrencyError) as error:
        raise InvalidFieldError("spend_limits", f"spend_limits: {error}") from None
    return tuple(sorted(limits, key=lambda limit: USAGE_UNITS.index(limit.unit)))


async def check_spend_in_tree(
    tx: WriteTx, old: GroupRecord | None, new: GroupRecord, ancestors: Sequence[GroupRecord]
) -> None:
    """Check a new or changed group against the others of its tree, which is locked. `old`: None for a new one.

    Raises `ChildExceedsParentLimitError`, for CASCADING trees, and `OtherCurrencyError`.
    """
    if not new.spend_limits:
        return
    other = await group_rows.spend_limits_beside(tx.conn, new)
    if other is not None and other[1][0].currency != new.spend_limits[0].currency:
        raise OtherCurrencyError(other[0], other[1][0].currency)
    with_balance = await group_rows.balance_in_tree(tx.conn, new.root_id)
    if with_balance is not None and with_balance[1].currency != new.spend_limits[0].currency:
        raise OtherCurrencyError(with_balance[0], with_balance[1].currency)
    if new.group.enforcement is not Enforcement.CASCADING:
        return
    await check_amounts(tx.conn, old, new, ancestors)
