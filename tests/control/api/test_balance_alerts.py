"""Alerts on prepaid balances, on both databases: percents of what was credited, and once per top-up that it is used up.

See docs/reference/events-and-webhooks.md#alerts.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import orjson
import pytest
from sqlalchemy import select

from control.edges.sql.alerts.tables import limit_alerts, limit_refusals
from control.edges.sql.group_rows import load_records, update_group
from control.edges.sql.spend.balance_rows import insert_credit
from control.edges.sql.tables import webhook_deliveries
from control.errors import SpendNotCountedError
from control.records.spend import BalanceReading, CreditRecord, SpendReading
from control.records.usage import Meter, Used
from control.resources.alerts.looks import FigureSources, look_at
from control.resources.alerts.watch import AlertWatch
from control.resources.traffic.figures import TrafficBatch, add_traffic
from control.retention import RetentionDays, delete_old_records
from policy.limits.alerts import ReachedLimit
from policy.prices import amount_text, units_of
from policy.spend.balances import Balance
from policy.spend.effective import SpendBound
from tests.control.api.description.deliveries import check_delivery
from tests.control.plane import SLUG, ControlPlane, Json, running_plane

GROUPS = "/v1/gateway/groups"
WEBHOOKS = "/v1/gateway/webhooks"
NOON_MS = 1_796_040_000_000
EXHAUSTED = [("BALANCE_EXHAUSTED", 100)]


def alerts(*percents: int) -> list[tuple[str, int]]:
    return [("LIMIT_ALERT", percent) for percent in percents]


@dataclass
class Counts:
    """The counters of trees. `drawn`: of each balance, by the group's id."""

    drawn: dict[str, str] = field(default_factory=dict)
    counted_ms: int = NOON_MS
    is_counted: bool = True
    after_reading: Callable[[], Awaitable[None]] | None = None

    async def now_ms(self) -> int:
        return NOON_MS

    async def used_at(self, meters: Sequence[Meter], clock_ms: int) -> list[Used]:
        return [Used(0, 0)] * len(meters)

    async def spend_of(self, bounds: Sequence[SpendBound], key: str, at_ms: int | None = None) -> SpendReading:
        raise SpendNotCountedError

    async def balance_of(self, tree_key: str, currency: str, group_id: str) -> BalanceReading:
        if not self.is_counted:
            raise SpendNotCountedError
        if self.after_reading is not None:
            step = self.after_reading
            self.after_reading = None
            await step()
        drawn = units_of(Decimal(self.drawn.get(group_id, "0")))
        return BalanceReading(counted_ms=self.counted_ms, drawn=drawn, reserved=0)


@dataclass
class Scene:
    """A workspace whose webhook is told of alerts."""

    plane: ControlPlane
    counts: Counts
    webhook: str
    _numbers: int = 0

    @property
    def sources(self) -> FigureSources:
        return FigureSources(self.counts, self.counts, self.counts)

    async def group(self, entity: str, **more: Any) -> str:
        body = {"metadata": {"external_entity_id": entity}, "models": [{"slug": SLUG}], **more}
        return str((await self.plane.post(GROUPS, body)).ok()["id"])

    async def credit(self, group: str, amount: str, at_ms: int = 0) -> None:
        """Enter a credit of this time as control does."""
        self._numbers += 1
        async with self.plane.store.write() as tx:
            record = (await load_records(tx.conn, [group]))[group]
            deposited = Decimal(0) if record.balance is None else record.balance.deposited
            balance = Balance("EUR", deposited + max(Decimal(amount), Decimal(0)))
            await update_group(tx, replace(record, balance=balance))
            name = f"{self._numbers}"
            credit = CreditRecord(name, group, name, Decimal(amount), note=None, timestamp_ms=at_ms or self._numbers)
            await insert_credit(tx, credit)

    async def look(self, *groups: str) -> list[tuple[str, int]]:
        """Look at the groups; the types and percents that are told."""
        return [(alert.message_type, alert.percent) for alert in await look_at(self.plane.store, self.sources, groups)]

    async def spend(self, group: str, amount: str) -> list[tuple[str, int]]:
        """Have so much drawn from the group's balance in all, and look."""
        self.counts.drawn[group] = amount
        return await self.look(group)

    async def refuse(self, group: str, deposited: str | None = None) -> None:
        """Have a proxy report that the group's balance leaves no room for a call. `deposited`: if not all of now."""
        self._numbers += 1
        if deposited is None:
            async with self.plane.store.read() as conn:
                balance = (await load_records(conn, [group]))[group].balance
            assert balance is not None
            deposited = amount_text(balance.deposited)
        limit = ReachedLimit(self.plane.workspace_id, group, "", "", "", deposited)
        await add_traffic(self.plane.store, TrafficBatch(f"{self._numbers:016x}", 1, (), (limit,)))

    async def messages(self) -> list[Json]:
        query = select(webhook_deliveries.c.body).where(webhook_deliveries.c.webhook_id == self.webhook)
        async with self.plane.store.read() as conn:
            bodies = (await conn.execute(query.order_by(webhook_deliveries.c.id))).scalars()
            messages = [orjson.loads(body) for body in bodies if body is not None]
        for message in messages:
            check_delivery("limitAlert", message)
        return messages

    async def count(self, table: Any) -> int:
        async with self.plane.store.read() as conn:
            return len((await conn.execute(select(table))).all())


@pytest.fixture
async def scene(database_url: str) -> AsyncIterator[Scene]:
    """Control's own sender never polls, and no name is resolved."""
    async with running_plane(
        database_url, webhook_poll_interval_s=1e6, egress_allow="hooks.example.com=127.0.0.1:9"
    ) as plane:
        body = {"url": "https://hooks.example.com/in", "event_types": ["LIMIT_ALERT"]}
        webhook = (await plane.post(WEBHOOKS, body)).ok()["id"]
        yield Scene(plane, Counts(), webhook)


async def test_percent_of_what_was_credited_is_told_once_and_without_a_window(scene: Scene) -> None:
    group = await scene.group("customer", alert_percents=[50, 80])
    await scene.credit(group, "10")
    assert await scene.spend(group, "4.9999999999999999999999") == []
    assert await scene.spend(group, "5") == alerts(50)
    assert await scene.spend(group, "5.5") == []
    assert await scene.spend(group, "8") == alerts(80)
    first, _ = await scene.messages()
    assert first["data"] == {
        "groupId": group,
        "externalEntityId": "customer",
        "limit": {
            **{"kind": "BALANCE", "type": None, "unit": None},
            **{"amount": "10.00", "currency": "EUR", "slug": None},
        },
        "used": "5.00",
        "percent": 50,
        "window": None,
    }


async def test_top_up_rearms_the_percents_above_what_is_spent(scene: Scene) -> None:
    group = await scene.group("customer", alert_percents=[50, 80])
    await scene.credit(group, "10")
    assert await scene.spend(group, "10") == alerts(50, 80)
    await scene.credit(group, "5")
    assert await scene.look(group) == [], "two thirds of 15 are spent"
    assert await scene.spend(group, "12") == alerts(80)
    assert (await scene.messages())[-1]["data"]["limit"]["amount"] == "15.00"


async def test_exhausted_balance_is_told_once_per_top_up(scene: Scene) -> None:
    """It needs no percents. A little may be left: less than a call needs."""
    group = await scene.group("customer")
    await scene.credit(group, "10")
    assert await scene.spend(group, "9.99") == [], "nobody was refused"
    for expected in (EXHAUSTED, []):
        await scene.refuse(group)
        assert await scene.look(group) == expected
    (message,) = await scene.messages()
    assert (message["type"], message["data"]["limit"]["kind"]) == ("BALANCE_EXHAUSTED", "BALANCE")
    assert (message["data"]["used"], message["data"]["percent"], message["data"]["window"]) == ("9.99", 100, None)
    await scene.credit(group, "10")
    assert await scene.look(group) == []
    await scene.refuse(group)
    assert await scene.spend(group, "19.99") == EXHAUSTED
    assert await scene.count(limit_refusals) == 0


async def test_percent_is_of_what_was_credited_at_the_last_top_up(scene: Scene) -> None:
    """A withdrawal is not spent, and changes nothing before the next top-up."""
    group = await scene.group("customer", alert_percents=[50])
    await scene.credit(group, "10")
    await scene.credit(group, "-6", NOON_MS)
    assert await scene.spend(group, "10") == [], "4 of 10 are spent"
    assert await scene.spend(group, "11") == alerts(50)
    await scene.credit(group, "8", NOON_MS + 1)
    assert await scene.spend(group, "11.99") == []
    assert await scene.spend(group, "12") == alerts(50), "6 of 12"


async def test_withdrawal_that_is_not_counted_yet_lowers_no_spend(scene: Scene) -> None:
    group = await scene.group("customer", alert_percents=[50])
    await scene.credit(group, "10")
    await scene.credit(group, "-5", NOON_MS + 1)
    assert await scene.spend(group, "5") == alerts(50)


async def test_top_up_during_a_look_leaves_the_group_for_the_next_one(scene: Scene) -> None:
    group = await scene.group("customer", alert_percents=[80])
    await scene.credit(group, "10")

    async def top_up() -> None:
        await scene.credit(group, "10")

    scene.counts.after_reading = top_up
    assert await scene.spend(group, "9") == []
    assert await scene.look(group) == []
    assert await scene.spend(group, "16") == alerts(80)


async def test_refusal_that_is_told_late_is_of_the_top_up_before(scene: Scene) -> None:
    group = await scene.group("customer")
    await scene.credit(group, "10")
    await scene.refuse(group)
    assert await scene.spend(group, "10") == EXHAUSTED
    await scene.credit(group, "10")
    await scene.refuse(group, "10.00")
    assert await scene.count(limit_refusals) == 0
    assert await scene.spend(group, "15") == []
    await scene.refuse(group)
    assert await scene.look(group) == EXHAUSTED


async def test_top_up_forgets_a_refusal_that_was_not_told_yet(scene: Scene) -> None:
    group = await scene.group("customer")
    await scene.credit(group, "10")
    await scene.refuse(group)
    body = {"amount": "5", "currency": "EUR", "reference": "INV-1"}
    (await scene.plane.post(f"{GROUPS}/{group}/balance/credits", body)).ok()
    assert await scene.count(limit_refusals) == 0
    assert await scene.spend(group, "10") == []


async def test_top_up_that_holds_no_call_is_exhausted_untouched(scene: Scene) -> None:
    group = await scene.group("customer")
    await scene.credit(group, "10")
    await scene.refuse(group)
    assert await scene.spend(group, "10") == EXHAUSTED
    await scene.credit(group, "0.000000000001")
    await scene.refuse(group)
    assert await scene.look(group) == EXHAUSTED


async def test_top_up_of_less_than_was_withdrawn_can_be_exhausted_again(scene: Scene) -> None:
    group = await scene.group("customer")
    await scene.credit(group, "10")
    await scene.refuse(group)
    assert await scene.spend(group, "5") == EXHAUSTED
    await scene.credit(group, "-5", NOON_MS)
    await scene.credit(group, "1", NOON_MS)
    await scene.refuse(group)
    assert await scene.spend(group, "11") == EXHAUSTED
    assert (await scene.messages())[-1]["data"]["limit"]["amount"] == "6.00"


@pytest.mark.parametrize("mode", ["INDEPENDENT", "CASCADING"])
async def test_calls_below_have_the_balance_looked_at(scene: Scene, mode: str) -> None:
    root = await scene.group("root", alert_percents=[50], hierarchy={"limit_enforcement": mode})
    child = await scene.group("child", hierarchy={"parent_group_id": root})
    await scene.credit(root, "10")
    scene.counts.drawn[root] = "5"
    assert await scene.look(child) == alerts(50)
    (message,) = await scene.messages()
    assert message["data"]["groupId"] == root


async def test_balance_has_the_percents_of_its_own_group(scene: Scene) -> None:
    root = await scene.group("root", alert_percents=[50])
    child = await scene.group("child", hierarchy={"parent_group_id": root})
    await scene.credit(child, "10")
    assert await scene.spend(child, "10") == []


async def test_watch_finds_a_balance_without_a_note(scene: Scene) -> None:
    group = await scene.group("customer", alert_percents=[50])
    await scene.credit(group, "10")
    scene.counts.drawn[group] = "5"
    messages: list[str] = []
    await AlertWatch(scene.plane.store, scene.sources, messages.append).look()
    assert messages == ["LIMIT_ALERT"]


async def test_tree_that_is_not_counted_yet_is_told_of_later(scene: Scene) -> None:
    group = await scene.group("customer", alert_percents=[50])
    await scene.credit(group, "10")
    scene.counts.is_counted = False
    assert await scene.spend(group, "5") == []
    scene.counts.is_counted = True
    assert await scene.look(group) == alerts(50)


async def test_alerts_on_a_balance_are_kept_while_its_group_exists(scene: Scene) -> None:
    group = await scene.group("customer", alert_percents=[50])
    await scene.credit(group, "10")
    assert await scene.spend(group, "5") == alerts(50)
    days = RetentionDays(events=92, sums=400, audit=400)
    await delete_old_records(scene.plane.store, days)
    assert await scene.look(group) == []
    (await scene.plane.delete(f"{GROUPS}/{group}?forfeit=true")).ok()
    await delete_old_records(scene.plane.store, days)
    assert await scene.count(limit_alerts) == 0
