"""The rules for the spend limits of a group and of its tree (docs/reference/management-api.md#spend-limits).

Those that span groups are checked with the tree locked, inside the transaction that saves.
"""

from collections.abc import Sequence
from functools import partial

from control.edges.sql import group_rows
from control.edges.sql.store import Connection, WriteTx
from control.errors import ChildExceedsParentLimitError, InvalidFieldError, OtherCurrencyError
from control.long_work import CHARS_PER_ITEM, beside
from control.records.policy import GroupRecord
from policy.limits.groups import ChildExceedsParentError, Enforcement
from policy.limits.kinds import USAGE_UNITS
from policy.spend.limits import (
    IllegalSpendLimitsError,
    SpendExceedsParentError,
    SpendLimit,
    TreeCurrencyError,
    check_currency,
    check_spend_below,
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
    for ancestor in ancestors:
        _check_below(ancestor.spend_limits, new.spend_limits)
    if old is not None:
        await _check_descendants(tx.conn, new, _tightened(old.spend_limits, new.spend_limits))


async def _check_descendants(conn: Connection, record: GroupRecord, ceilings: Sequence[SpendLimit]) -> None:
    if not ceilings:
        return
    async for texts in group_rows.spend_limits_below(conn, record):
        items = sum(map(len, texts)) // CHARS_PER_ITEM
        await beside(record.group.workspace_id, items, partial(_check_texts, ceilings, texts))


def _tightened(old: Sequence[SpendLimit], new: Sequence[SpendLimit]) -> list[SpendLimit]:
    """The limits that `new` lowers or adds. Only these can make a descendant exceed its ancestor."""
    before = {limit.unit: limit.amount for limit in old}
    return [limit for limit in new if limit.unit not in before or limit.amount < before[limit.unit]]


def _check_texts(ceilings: Sequence[SpendLimit], texts: Sequence[str]) -> None:
    """Refuse an amount above its ceiling in these lists of spend limits."""
    for text in texts:
        _check_below(ceilings, group_rows.spend_limits_of(text))


def _check_below(upper: Sequence[SpendLimit], lower: Sequence[SpendLimit]) -> None:
    try:
        check_spend_below(upper, lower)
    except SpendExceedsParentError:
        raise ChildExceedsParentLimitError(str(ChildExceedsParentError())) from None
