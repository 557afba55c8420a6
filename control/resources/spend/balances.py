"""Prepaid balances: credits, what is left, and the ledger (docs/reference/money.md#balances).

A deposit raises what policy says was paid in. A withdrawal takes room in the tree's hash, as a call does, within the
transaction that writes it. So no moment admits calls for money that is withdrawn.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import NamedTuple

from ulid import ULID

from control.edges.sql import group_rows
from control.edges.sql.alerts.rows import forget_balance_refusal
from control.edges.sql.events.clock import EventClock
from control.edges.sql.events.deadline import within_deadline
from control.edges.sql.spend import balance_rows
from control.edges.sql.store import Connection, Store, WriteTx
from control.errors import (
    BalanceNotFoundError,
    GroupNotFoundError,
    NotEnoughCreditError,
    OtherCreditError,
    OtherCurrencyError,
    SpendNotCountedError,
    TooMuchCreditError,
    UsageUnavailableError,
)
from control.records.audit import Change, Shown
from control.records.policy import GroupRecord
from control.records.spend import CreditRecord, Entry, EntryPosition, Withdrawal
from control.resources.changes.resource_paths import path_of
from control.resources.policy_feed import check_balances_known_to_proxies
from control.resources.spend.balance_source import BalanceSource
from control.resources.spend.tree_limits import check_currency_in_tree
from policy.prices import amount_of, amount_text, sum_of, units_of
from policy.spend.balances import Balance
from policy.spend.spend_hash import amount_of_picos, spend_key

log = logging.getLogger(__name__)

MOST_DEPOSITED = Decimal(10**12)
"""The bound of all deposits of a balance together: policy has amounts with 12 digits before the point."""


@dataclass(frozen=True, slots=True)
class NewCredit:
    """A credit to make. `amount`: not 0; below 0 for a withdrawal."""

    amount: Decimal
    currency: str
    reference: str
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Ledger:
    """The parts that a credit is made with. `source` None: there is no Redis, and nothing can be withdrawn.

    `clock`, `holdback_s`: those of ingest, because a withdrawal is counted as events are.
    """

    store: Store
    source: BalanceSource | None
    clock: EventClock
    holdback_s: float


class MadeCredit(NamedTuple):
    """A credit and its currency."""

    credit: CreditRecord
    currency: str


class _NoRoomError(Exception):
    """The hash has no room for a withdrawal."""


async def credit_group(ledger: Ledger, workspace_id: str, group_id: str, new: NewCredit) -> MadeCredit:
    """Make a credit of the group's balance. The first one makes the balance. The same reference again changes nothing.

    Raises `NotEnoughCreditError` for a withdrawal above what is available, `OtherCreditError` if the reference is that
    of another amount, `UsageUnavailableError` where a withdrawal cannot be decided. After an error, repeat it.
    """

    async def work(tx: WriteTx) -> MadeCredit:
        record = await group_rows.lock_tree(tx, workspace_id, group_id)
        if record is None:
            raise GroupNotFoundError
        earlier = await balance_rows.find_credit(tx.conn, group_id, new.reference)
        if earlier is not None:
            return _same(earlier, record.balance, new)
        credit = await (_deposit if new.amount > 0 else _withdraw)(ledger, tx, record, new)
        tx.audit(workspace_id, Change("balance.credit", path_of(credit), None, shown_credit(credit, new.currency)))
        return MadeCredit(credit, new.currency)

    try:
        return await ledger.store.transact(work)
    except _NoRoomError:
        figures = await read_balance(ledger.store, ledger.source, workspace_id, group_id)
        raise NotEnoughCreditError(amount_text(figures.available), figures.currency) from None


def shown_credit(credit: CreditRecord, currency: str) -> Shown:
    """The credit for the audit trail."""
    amount = {"amount": amount_text(credit.amount), "currency": currency}
    return {"reference": credit.reference, **amount, "note": credit.note}


def _same(earlier: CreditRecord, balance: Balance | None, new: NewCredit) -> MadeCredit:
    currency = new.currency if balance is None else balance.currency
    if (earlier.amount, currency) != (new.amount, new.currency):
        raise OtherCreditError(new.reference, amount_text(earlier.amount), currency)
    return MadeCredit(earlier, currency)


async def _deposit(ledger: Ledger, tx: WriteTx, record: GroupRecord, new: NewCredit) -> CreditRecord:
    if record.balance is None:
        await check_balances_known_to_proxies(tx)
        await check_currency_in_tree(tx.conn, record.root_id, new.currency, field="currency")
    balance = record.balance or Balance(new.currency, Decimal(0))
    _check_currency(record, balance, new)
    deposited = sum_of((new.currency, part) for part in (balance.deposited, new.amount))[new.currency]
    if deposited >= MOST_DEPOSITED:
        raise TooMuchCreditError
    credit = _record(record, new, (await ledger.clock.read(tx.conn)).now_ms)
    await balance_rows.insert_credit(tx, credit)
    # Its `updated_at_ms` stays: a policy file that owns the group has nothing to do with what is paid in.
    await group_rows.update_group(tx, replace(record, balance=replace(balance, deposited=deposited)))
    await forget_balance_refusal(tx, record.group.id)  # what was refused before has room now
    return credit


async def _withdraw(ledger: Ledger, tx: WriteTx, record: GroupRecord, new: NewCredit) -> CreditRecord:
    """Take room in the hash, then write it down. A wait of the tree for lost reservations cannot begin in between."""
    balance = record.balance
    if balance is None:
        raise NotEnoughCreditError("0.00", new.currency)
    _check_currency(record, balance, new)
    if ledger.source is None:
        raise UsageUnavailableError
    if not await balance_rows.hold_complete(tx, record.root_id):
        raise SpendNotCountedError
    tree_key = spend_key(record.root_id)
    reserved: str | None = None
    try:
        async with within_deadline(tx, ledger.holdback_s):
            # Stamped first: nothing later is counted before this transaction ends, nor is its reservation swept.
            credit = _record(record, new, (await ledger.clock.read_to_stamp(tx)).now_ms)
            reserved = credit.key
            amount = new.amount.copy_abs()
            withdrawal = Withdrawal(tree_key, new.currency, credit.group_id, balance.deposited, amount, credit.key)
            if not await ledger.source.withdraw(withdrawal):
                reserved = None
                raise _NoRoomError
            await balance_rows.insert_credit(tx, credit)
    except BaseException:
        # Here it is certain that the transaction will not be committed. Later the sweep finds out.
        if reserved is not None:
            with suppress(UsageUnavailableError):
                await ledger.source.give_back_withdrawal(tree_key, reserved)
        raise
    return credit


def _record(record: GroupRecord, new: NewCredit, at_ms: int) -> CreditRecord:
    # The sweep tells the age of a withdrawal's reservation by its key and by the time that is counted: of one clock.
    return CreditRecord(
        key=str(ULID.from_timestamp(at_ms)),
        group_id=record.group.id,
        reference=new.reference,
        amount=new.amount,
        note=new.note,
        timestamp_ms=at_ms,
    )


def _check_currency(record: GroupRecord, balance: Balance, new: NewCredit) -> None:
    if balance.currency != new.currency:
        raise OtherCurrencyError(f"group {record.group.id}", balance.currency, "currency")


class BalanceFigures(NamedTuple):
    """A balance: `available` is `credited` less `spent` and `reserved`. It may be negative after a restore.

    `credited`: deposits less withdrawals. `spent`: the draws of calls that are counted; `reserved`: of the others, and
    of calls in flight.
    """

    currency: str
    credited: Decimal
    spent: Decimal
    reserved: Decimal
    available: Decimal


async def read_balance(store: Store, source: BalanceSource | None, workspace_id: str, group_id: str) -> BalanceFigures:
    """Read the group's own balance. Without a source nothing is in flight, and the ledger tells.

    Raises `UsageUnavailableError` if Redis does not answer, or what is drawn is not counted yet.
    """
    async with store.read() as conn:  # before the hash, so that each withdrawal that is counted there is known
        record, balance = await _with_balance(conn, workspace_id, group_id)
        withdrawals = await balance_rows.withdrawals_of(conn, [group_id])
        drawn = {} if source is not None else await balance_rows.drawn_units(conn, [group_id])
    amounts = [(one.timestamp_ms, units_of(one.amount.copy_abs())) for one in withdrawals]
    withdrawn = sum(units for _, units in amounts)
    if source is None:
        spent, reserved = drawn.get(group_id, 0), Decimal(0)
    else:
        reading = await source.balance_of(spend_key(record.root_id), balance.currency, group_id)
        counted = sum(units for at_ms, units in amounts if at_ms <= reading.counted_ms)
        spent = reading.drawn - counted
        # While reservations are missing, those of withdrawals may be.
        reserved = max(Decimal(0), amount_of_picos(reading.reserved) - amount_of(withdrawn - counted))
    credited = units_of(balance.deposited) - withdrawn
    available = credited - spent - units_of(reserved)
    return BalanceFigures(balance.currency, amount_of(credited), amount_of(spent), reserved, amount_of(available))


class ListedEntry(NamedTuple):
    """An entry of a ledger and its currency."""

    entry: Entry
    currency: str


async def read_entries(
    store: Store, workspace_id: str, group_id: str, before: EntryPosition | None, limit: int
) -> Sequence[ListedEntry]:
    """The next entries of the group's own balance behind `before`, at most `limit`, latest first; none without one.

    A draw has the time at which its hour starts; a credit of the same millisecond is before it.
    """
    async with store.read() as conn:
        balance = (await _existing(conn, workspace_id, group_id)).balance
        if balance is None:
            return []
        credits = await balance_rows.credits_before(conn, group_id, before, limit)
        draws = await balance_rows.draws_before(conn, group_id, before, limit)
    entries: list[Entry] = sorted([*credits, *draws], key=lambda entry: entry.position, reverse=True)
    return [ListedEntry(entry, balance.currency) for entry in entries[:limit]]


async def _with_balance(conn: Connection, workspace_id: str, group_id: str) -> tuple[GroupRecord, Balance]:
    record = await _existing(conn, workspace_id, group_id)
    if record.balance is None:
        raise BalanceNotFoundError
    return record, record.balance


async def _existing(conn: Connection, workspace_id: str, group_id: str) -> GroupRecord:
    record = await group_rows.find_group(conn, workspace_id, group_id)
    if record is None:
        raise GroupNotFoundError
    return record
