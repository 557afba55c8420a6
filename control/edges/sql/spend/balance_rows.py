"""The ledger of prepaid balances: credits, and what calls drew by group, hour and slug. Amounts are exact.

What was paid in, all credits above 0, is a column of `groups`.

See docs/reference/money.md#balances.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from decimal import Decimal
from typing import Any, Protocol

from sqlalchemy import BigInteger, Select, and_, delete, func, insert, literal_column, or_, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from control.edges.sql.group_rows import balance_of, inside_of
from control.edges.sql.one_of import one_of
from control.edges.sql.spend.tables import IS_WITHDRAWAL, balance_credits, balance_draws, spend_rebuilds
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import HAS_BALANCE, groups
from control.records.policy import GroupRecord
from control.records.spend import COMPLETE, CreditRecord, EntryPosition, HourDraws
from policy.prices import amount_text, units_of
from policy.spend.balances import Balance
from policy.spend.spend_hash import LIMB, limbs_of, units_of_limbs

HOUR_MS = 3_600_000
_Key = tuple[str, int, str]
"""Group, start of the hour, slug."""


class Drawing(Protocol):
    """A row of `events` that is stored."""

    @property
    def balance_group(self) -> str | None: ...

    @property
    def timestamp_ms(self) -> int: ...

    @property
    def model_slug(self) -> str: ...

    @property
    def draw(self) -> str | None: ...


async def keep_groups(tx: WriteTx, ids: Collection[str]) -> dict[str, Balance | None]:
    """The balances of these groups, as far as the groups exist. They are not deleted before the transaction ends."""
    query = select(groups.c.id, groups.c.balance).where(one_of(groups.c.id, ids)).order_by(groups.c.id)
    rows = await tx.conn.execute(query.with_for_update(read=True, key_share=True))
    return {id: balance_of(text) for id, text in rows}


async def add_draws(tx: WriteTx, rows: Iterable[Drawing]) -> None:
    """Add what these new events draw to the ledger, in the transaction that stores them.

    In the order of the key, so that two transactions cannot deadlock.
    """
    sums: dict[_Key, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        if row.balance_group is not None and row.draw is not None and row.draw != "0":
            of_hour = sums[row.balance_group, row.timestamp_ms // HOUR_MS * HOUR_MS, row.model_slug]
            of_hour[0] += 1
            of_hour[1] += int(row.draw)
    if not sums:
        return
    names = balance_draws.columns.keys()
    values = [
        dict(zip(names, (*key, calls, *limbs_of(units)), strict=True)) for key, (calls, units) in sorted(sums.items())
    ]
    await tx.conn.execute(_upsert(tx), values)


def _upsert(tx: WriteTx) -> Any:
    """Add to the row. What the last limbs come to is carried, so that no sum of rows outgrows its column."""
    dialect: Any = sqlite if tx.conn.dialect.name == "sqlite" else postgresql
    statement = dialect.insert(balance_draws)
    old, new = balance_draws.c, statement.excluded
    last = old["last"] + new["last"]
    picos = old.picos + new.picos + last // LIMB
    added = {
        "calls": old.calls + new.calls,
        "whole": old.whole + new.whole + picos // LIMB,
        "picos": picos % LIMB,
        "last": last % LIMB,
    }
    return statement.on_conflict_do_update(index_elements=["group_id", "hour_ms", "slug"], set_=added)


async def drawn_units(conn: Connection, group_ids: Collection[str]) -> dict[str, int]:
    """The units that calls have drawn from the balance of each of these groups; none for one without draws."""
    return await _drawn(conn, select(*_DRAWN).where(one_of(balance_draws.c.group_id, group_ids)))


async def drawn_in_tree(conn: Connection, root_id: str) -> dict[str, int]:
    """The same of each group of a tree."""
    of_tree = balance_draws.join(groups, groups.c.id == balance_draws.c.group_id)
    return await _drawn(conn, select(*_DRAWN).select_from(of_tree).where(groups.c.root_id == root_id))


_LIMB = literal_column(str(LIMB), BigInteger)
_LOWER = (balance_draws.c.picos, balance_draws.c["last"])
_CARRIED: list[Any] = [func.sum(part) for limb in _LOWER for part in (limb // _LIMB, limb % _LIMB)]
"""The sums of the lower limbs, in two parts each: whole sums of many rows may be above 64 bits."""
_DRAWN = (balance_draws.c.group_id, func.sum(balance_draws.c.whole), *_CARRIED)


async def _drawn(conn: Connection, query: Select[Any]) -> dict[str, int]:
    drawn: dict[str, int] = {}
    for group_id, *sums in await conn.execute(query.group_by(balance_draws.c.group_id)):
        whole, picos_over, picos, last_over, last = map(int, sums)
        drawn[group_id] = units_of_limbs(whole, picos_over * LIMB + picos, last_over * LIMB + last)
    return drawn


# --- credits ------------------------------------------------------------------------------------------------------


async def insert_credit(tx: WriteTx, record: CreditRecord) -> None:
    values = {**record._asdict(), "amount": amount_text(record.amount)}
    await tx.conn.execute(insert(balance_credits).values(**values))


async def hold_complete(tx: WriteTx, root_id: str) -> bool:
    """Return whether all reservations of the tree are known to be in its hash. If so, and they are lost, no wait for
    them begins before the transaction ends."""
    query = select(spend_rebuilds.c.state).where(spend_rebuilds.c.root_id == root_id).with_for_update(read=True)
    return bool((await tx.conn.execute(query)).scalar() == COMPLETE)


async def find_credit(conn: Connection, group_id: str, reference: str) -> CreditRecord | None:
    """The group's credit of this reference."""
    table = balance_credits.c
    query = select(balance_credits).where(table.group_id == group_id, table.reference == reference)
    row = (await conn.execute(query)).one_or_none()
    return None if row is None else _credit(row)


async def withdrawals_of(conn: Connection, group_ids: Collection[str]) -> list[CreditRecord]:
    """All withdrawals of these groups."""
    query = select(balance_credits).where(one_of(balance_credits.c.group_id, group_ids), IS_WITHDRAWAL)
    return list(map(_credit, await conn.execute(query)))


def _credit(row: Any) -> CreditRecord:
    members = {name: getattr(row, name) for name in CreditRecord._fields}
    return CreditRecord(**{**members, "amount": Decimal(row.amount)})


# --- entries ------------------------------------------------------------------------------------------------------


async def credits_before(
    conn: Connection, group_id: str, before: EntryPosition | None, limit: int
) -> Sequence[CreditRecord]:
    """The next credits of the group behind this entry, at most `limit`, latest first."""
    table = balance_credits.c
    query = select(balance_credits).where(table.group_id == group_id)
    if before is not None:
        same_ms = before.is_credit == 1
        behind = and_(table.timestamp_ms == before.at_ms, table.key < before.name) if same_ms else None
        earlier = table.timestamp_ms < before.at_ms
        query = query.where(earlier if behind is None else or_(earlier, behind))
    rows = await conn.execute(query.order_by(table.timestamp_ms.desc(), table.key.desc()).limit(limit))
    return list(map(_credit, rows))


async def draws_before(
    conn: Connection, group_id: str, before: EntryPosition | None, limit: int
) -> Sequence[HourDraws]:
    """The same of draws. A draw is behind the credits of its millisecond."""
    table = balance_draws.c
    query: Select[Any] = select(balance_draws).where(table.group_id == group_id)
    if before is not None and before.is_credit:
        query = query.where(table.hour_ms <= before.at_ms)
    elif before is not None:
        query = query.where(tuple_(table.hour_ms, table.slug) < (before.at_ms, before.name))
    rows = await conn.execute(query.order_by(table.hour_ms.desc(), table.slug.desc()).limit(limit))
    return [
        HourDraws(
            group_id=row.group_id,
            hour_ms=row.hour_ms,
            slug=row.slug,
            calls=row.calls,
            units=units_of_limbs(row.whole, row.picos, row.last),
        )
        for row in rows
    ]


# --- a subtree that is deleted ------------------------------------------------------------------------------------


async def lock_balances(tx: WriteTx, record: GroupRecord) -> dict[str, Balance]:
    """The balances of the group and of those below it. Nothing is drawn from them before the transaction ends."""
    inside = inside_of(record.path)
    query = select(groups.c.id, groups.c.balance).where(groups.c.root_id == record.root_id, HAS_BALANCE, inside)
    rows = (await tx.conn.execute(query.order_by(groups.c.id).with_for_update())).all()
    balances = {id: balance_of(text) for id, text in rows}
    return {id: balance for id, balance in balances.items() if balance is not None}


async def credit_left(conn: Connection, balances: dict[str, Balance]) -> dict[str, int]:
    """The units that remain of each balance by the ledger: paid in, not withdrawn and not drawn."""
    rest = {id: units_of(balance.deposited) for id, balance in balances.items()}
    for withdrawal in await withdrawals_of(conn, balances):
        rest[withdrawal.group_id] += units_of(withdrawal.amount)
    for id, units in (await drawn_units(conn, balances)).items():
        rest[id] -= units
    return rest


async def delete_ledgers(tx: WriteTx, record: GroupRecord) -> None:
    """Delete all entries of the group and of those below it, before they are deleted themselves."""
    ids = select(groups.c.id).where(inside_of(record.path))
    for table in (balance_credits, balance_draws):
        await tx.conn.execute(delete(table).where(table.c.group_id.in_(ids)))
