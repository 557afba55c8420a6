"""Prepaid balances of groups: credits, what is left, and the ledger. Amounts are decimal text.

See docs/reference/money.md#balances and docs/reference/management-api.md#balances.
"""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from control.api.billing.prices import CurrencyText
from control.api.protocol.encoding import Encoded
from control.api.protocol.lists import Listing, Position, encoder, list_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import (
    NO_NUL,
    Name,
    PageQueryV1,
    PaginationResponseV1,
    RequestV1,
    ResponseV1,
    TimeText,
)
from control.records.spend import CreditRecord, EntryPosition, HourDraws
from control.records.times import time_text
from control.resources.spend import balances
from control.resources.spend.balances import Ledger, ListedEntry, MadeCredit, NewCredit
from policy.keys.permissions import Permission
from policy.prices import AMOUNT_PATTERN, amount_of, amount_text

SIGNED_PATTERN = f"-?{AMOUNT_PATTERN.pattern}"
MAX_NOTE_CHARS = 1000
CREDIT = "CREDIT"
DRAW = "DRAW"


def _check_signed(text: str) -> str:
    if re.fullmatch(SIGNED_PATTERN, text) is None:
        raise ValueError(
            "must be decimal text with at most 12 digits before and 12 after the point, such as 100.00 or -20.00"
        )
    if not Decimal(text):
        raise ValueError("must not be 0")
    return text


SignedAmountText = Annotated[
    str,
    AfterValidator(_check_signed),
    Field(
        examples=["100.00"],
        description="Above 0 it is paid in, below 0 withdrawn. Not 0.",
        json_schema_extra={"pattern": f"^{SIGNED_PATTERN}$"},
    ),
]
Note = Annotated[str, Field(max_length=MAX_NOTE_CHARS, json_schema_extra=NO_NUL)]


class BalanceCreditRequestV1(RequestV1):
    """A credit of a group's prepaid balance. The first one makes the balance, and sets its currency."""

    amount: SignedAmountText
    currency: CurrencyText = Field(description="That of the balance, and of all of the group's tree.")
    reference: Name = Field(
        examples=["invoice-2026-17"],
        description="Your name for it, unique for the group. The same again, with the same amount, changes nothing.",
    )
    note: Note | None = None


class BalanceCreditV1(ResponseV1):
    """A credit that was made. `amount` is below 0 for a withdrawal."""

    amount: str = Field(examples=["100.00"])
    currency: str = Field(examples=["EUR"])
    reference: str
    note: str | None
    timestamp: TimeText


class BalanceV1(ResponseV1):
    """A group's own balance: `available` is `credited` less `spent` and `reserved`.

    `credited`: all credits, less withdrawals. `spent`: the draws of calls that are counted. `reserved`: the most that
    calls in flight can cost, and what calls cost that are not counted yet.
    """

    currency: str = Field(examples=["EUR"])
    credited: str = Field(examples=["100.00"])
    spent: str = Field(examples=["12.3456"])
    reserved: str = Field(examples=["0.02"])
    available: str = Field(examples=["87.6344"])


class BalanceEntryV1(ResponseV1):
    """An entry of the ledger. `amount` is below 0 where the balance falls, so all entries add up to what is left.

    CREDIT: `reference`, `note`. DRAW: the `calls` through `slug` in the UTC hour that starts at `timestamp`.
    """

    type: Literal["CREDIT", "DRAW"]
    amount: str = Field(examples=["-0.0345"])
    currency: str = Field(examples=["EUR"])
    timestamp: TimeText
    reference: str | None
    note: str | None
    slug: str | None
    calls: int | None


class BalanceEntriesResponseV1(ResponseV1):
    """One page of entries, latest first."""

    items: list[BalanceEntryV1]
    pagination: PaginationResponseV1


async def _post_credit(request: ApiRequest) -> BalanceCreditV1:
    body = request.body_as(BalanceCreditRequestV1)
    parts = request.dependencies
    group_id = request.path["group_id"]
    ledger = Ledger(parts.store, parts.balances, parts.ingest.clock, parts.ingest.holdback_s)
    new = NewCredit(Decimal(body.amount), body.currency, body.reference, body.note)
    credit = await balances.credit_group(ledger, request.workspace_id, group_id, new)
    parts.alerts.note([(request.workspace_id, group_id)])
    return _credit(credit)


def _credit(new: MadeCredit) -> BalanceCreditV1:
    return BalanceCreditV1(
        amount=amount_text(new.credit.amount),
        currency=new.currency,
        reference=new.credit.reference,
        note=new.credit.note,
        timestamp=time_text(new.credit.timestamp_ms),
    )


async def _get(request: ApiRequest) -> BalanceV1:
    parts = request.dependencies
    group_id = request.path["group_id"]
    figures = await balances.read_balance(parts.store, parts.balances, request.workspace_id, group_id)
    return BalanceV1(**shown_balance(figures))


_AMOUNTS = balances.BalanceFigures._fields[1:]


def shown_balance(figures: balances.BalanceFigures) -> dict[str, Any]:
    """The members of a `BalanceV1`."""
    amounts = {name: amount_text(amount) for name, amount in zip(_AMOUNTS, figures[1:], strict=True)}
    return {"currency": figures.currency, **amounts}


async def _list(request: ApiRequest) -> Encoded:
    async def fetch(at: Position[ListedEntry]) -> Sequence[ListedEntry]:
        before = None if at.after is None else EntryPosition(*at.after)
        group_id = request.path["group_id"]
        return await balances.read_entries(request.store, request.workspace_id, group_id, before, at.limit)

    listing = Listing("balance entries", fetch, lambda one: list(one.entry.position), encoder(_entry))
    return await list_page(request, listing)


def _entry(listed: ListedEntry) -> BalanceEntryV1:
    members: dict[str, Any] = dict.fromkeys(("reference", "note", "slug", "calls"))
    match listed.entry:
        case CreditRecord() as credit:
            members |= {"type": CREDIT, "reference": credit.reference, "note": credit.note}
            amount, at_ms = credit.amount, credit.timestamp_ms
        case HourDraws() as draws:
            members |= {"type": DRAW, "slug": draws.slug, "calls": draws.calls}
            amount, at_ms = amount_of(-draws.units), draws.hour_ms
    members |= {"amount": amount_text(amount), "currency": listed.currency, "timestamp": time_text(at_ms)}
    return BalanceEntryV1(**members)


_PATH = "/v1/gateway/groups/{group_id}/balance"
OPERATIONS = (
    Operation("GET", _PATH, _get, "Get a group's prepaid balance", BalanceV1, errors=(404,), needs=Permission.READ),
    Operation(
        *("POST", f"{_PATH}/credits", _post_credit, "Pay into a group's balance, or withdraw", BalanceCreditV1),
        body=BalanceCreditRequestV1,
        errors=(400, 404, 409),
        needs=Permission.CREDITS,
        creates=True,
    ),
    Operation(
        *("GET", f"{_PATH}/entries", _list, "List the entries of a group's balance", BalanceEntriesResponseV1),
        query=PageQueryV1,
        errors=(400, 404),
        needs=Permission.READ,
    ),
)
