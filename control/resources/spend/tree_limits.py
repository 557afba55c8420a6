"""The rules for the spend limits of a group and of its tree (docs/reference/management-api.md#spend-limits).

Those that span groups are checked with the tree locked, inside the transaction that saves.
"""

from collections.abc import Sequence

from control.edges.sql import group_rows, key_rows
from control.edges.sql.store import Connection, WriteTx
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
    await check_currency_in_tree(tx.conn, new.root_id, new.spend_limits[0].currency, but=new.path)
    if new.group.enforcement is not Enforcement.CASCADING:
        return
    await check_amounts(tx.conn, old, new, ancestors)


async def check_currency_in_tree(
    conn: Connection, root_id: str, currency: str, *, field: str = "spend_limits", but: str = ""
) -> None:
    """Check the currency of a change against all that the tree has, which is locked, but what the change replaces.

    `but`: the path of the group, or the prefix of the key, whose spend limits it replaces. Raises `OtherCurrencyError`.
    """
    limits = await group_rows.spend_limits_in_tree(conn, root_id, but)
    if limits is not None and limits[1][0].currency != currency:
        raise OtherCurrencyError(f"group {limits[0]}", limits[1][0].currency, field)
    balance = await group_rows.balance_in_tree(conn, root_id)
    if balance is not None and balance[1].currency != currency:
        raise OtherCurrencyError(f"group {balance[0]}", balance[1].currency, field)
    key = await key_rows.key_with_spend_limits(conn, root_id, but)
    if key is not None and key.key_settings.spend_limits[0].currency != currency:
        raise OtherCurrencyError(f"key {key.prefix}", key.key_settings.spend_limits[0].currency, field)
