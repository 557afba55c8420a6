"""Alerts on limits, on both databases: each percent of each limit and window is told once, to whom it concerns.

See docs/reference/events-and-webhooks.md#alerts.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import orjson
import pytest
from sqlalchemy import select

from control.edges.sql.alerts.tables import limit_alerts, limit_refusals
from control.edges.sql.store import Store
from control.edges.sql.tables import webhook_deliveries
from control.errors import SpendNotCountedError, UsageUnavailableError
from control.records.spend import BalanceReading, SpendReading, SpendUse
from control.records.times import time_text
from control.records.usage import Meter, Used
from control.resources.alerts.looks import FigureSources, look_at
from control.resources.alerts.watch import ROUND_AT_ONCE, AlertWatch, NotedGroups
from control.resources.traffic.figures import TrafficBatch, add_traffic
from control.resources.webhook_messages import outbox
from control.retention import ALERT_DAYS, RetentionDays, delete_old_records
from policy.limits.alerts import ReachedLimit
from policy.limits.kinds import Unit
from policy.limits.windows import DAY_MS, window_at
from policy.spend.effective import SpendBound
from tests.control.api.description.deliveries import check_delivery
from tests.control.billing import clock_ms, event, ingest_and_reader
from tests.control.plane import SLUG, ControlPlane, Json, running_plane

GROUPS = "/v1/gateway/groups"
WEBHOOKS = "/v1/gateway/webhooks"
NOON_MS = 1_796_040_000_000
BOTH = ["API_BILLING_USAGE", "LIMIT_ALERT"]


@dataclass
class Counts:
    """The counters of usage and of spend limits. `requests`, `spent`: of each counting group."""

    requests: dict[str, int] = field(default_factory=dict)
    clock_ms: int = NOON_MS
    yesterday: dict[str, int] = field(default_factory=dict)
    before_reading: Callable[[], Awaitable[None]] | None = None
    is_away: bool = False
    reads: int = 0
    spent: dict[str, str] = field(default_factory=dict)
    is_spend_counted: bool = True

    async def now_ms(self) -> int:
        if self.is_away:
            raise UsageUnavailableError
        return self.clock_ms

    async def used_at(self, meters: Sequence[Meter], clock_ms: int) -> list[Used]:
        self.reads += len(meters)
        if self.before_reading is not None:
            step = self.before_reading
            self.before_reading = None
            await step()
        counts = self.requests if clock_ms // DAY_MS == self.clock_ms // DAY_MS else self.yesterday
        return [Used(counts.get(meter.bucket.group_id, 0), 0) for meter in meters]

    async def spend_of(self, bounds: Sequence[SpendBound], key: str, at_ms: int | None = None) -> SpendReading:
        if not self.is_spend_counted:
            raise SpendNotCountedError
        amounts = [Decimal(self.spent.get(bound.counting_group, "0")) for bound in bounds]
        return SpendReading(at_ms or self.clock_ms, tuple(SpendUse(amount, Decimal(0)) for amount in amounts))

    async def balance_of(self, tree_key: str, currency: str, group_id: str) -> BalanceReading:
        raise SpendNotCountedError


def limited(threshold: int, unit: str = "DAY", type: str = "REQUEST") -> list[Json]:
    return [{"slug": SLUG, "usage_limits": [{"type": type, "unit": unit, "threshold": threshold}]}]


@dataclass
class Scene:
    """A workspace whose webhook `url` is told of alerts."""

    plane: ControlPlane
    counts: Counts

    @property
    def sources(self) -> FigureSources:
        return FigureSources(self.counts, self.counts, self.counts)

    async def group(self, entity: str, **more: Any) -> str:
        body = {"metadata": {"external_entity_id": entity}, "models": limited(10), **more}
        return str((await self.plane.post(GROUPS, body)).ok()["id"])

    async def webhook(self, **more: Any) -> str:
        url = "https://hooks.example.com/in"
        body = {"url": url, "event_types": ["LIMIT_ALERT"], **more}
        return str((await self.plane.post(WEBHOOKS, body)).ok()["id"])

    async def change(self, group: str, **members: Any) -> None:
        (await self.plane.patch(f"{GROUPS}/{group}", members)).ok()

    async def look(self, *groups: str, use: int | None = None, store: Store | None = None) -> list[tuple[str, int]]:
        """Look at the groups; the types and percents that are told. `use`: of the first one."""
        if use is not None:
            self.counts.requests[groups[0]] = use
        alerts = await look_at(store or self.plane.store, self.sources, groups)
        return [(alert.message_type, alert.percent) for alert in alerts]

    async def messages(self, webhook: str) -> list[Json]:
        query = select(webhook_deliveries.c.body).where(webhook_deliveries.c.webhook_id == webhook)
        async with self.plane.store.read() as conn:
            bodies = (await conn.execute(query.order_by(webhook_deliveries.c.id))).scalars()
            messages = [orjson.loads(body) for body in bodies if body is not None]
        for message in messages:
            check_delivery("limitAlert", message)
        return messages

    async def refuse(self, group: str, **more: str) -> None:
        """Have a proxy report that the group's limit has refused a call for want of room."""
        members = {"workspace_id": self.plane.workspace_id, "group_id": group, "slug": SLUG, "type": "REQUEST"}
        limit = ReachedLimit(**{**members, "unit": "DAY", **more})
        await add_traffic(self.plane.store, TrafficBatch(f"{len(self._batches):016x}", 1, (), (limit,)))
        self._batches.append(limit)

    _batches: list[ReachedLimit] = field(default_factory=list)

    async def refusals(self) -> int:
        async with self.plane.store.read() as conn:
            return len((await conn.execute(select(limit_refusals))).all())

    async def watch(self, turns: int = 1) -> list[str]:
        """The messages that a new watch tells in so many turns, by type."""
        messages: list[str] = []
        watch = AlertWatch(self.plane.store, self.sources, messages.append)
        for _ in range(turns):
            await watch.look()
        return messages


@pytest.fixture
async def scene(database_url: str) -> AsyncIterator[Scene]:
    """Control's own sender never polls, and no name is resolved."""
    async with running_plane(
        database_url, webhook_poll_interval_s=1e6, egress_allow="hooks.example.com=127.0.0.1:9"
    ) as plane:
        yield Scene(plane, Counts())


def alerts(*percents: int) -> list[tuple[str, int]]:
    return [("LIMIT_ALERT", percent) for percent in percents]


REACHED = [("LIMIT_REACHED", 100)]


async def test_each_crossed_percent_is_told_once_in_a_window(scene: Scene) -> None:
    group = await scene.group("customer", alert_percents=[100, 50, 80])
    webhook = await scene.webhook()
    assert await scene.look(group, use=4) == []
    assert await scene.look(group, use=5) == alerts(50)
    assert await scene.look(group, use=9) == alerts(80)
    assert await scene.look(group, use=9) == []
    assert await scene.look(group, use=10) == alerts(100)
    first, *others = await scene.messages(webhook)
    start_ms, end_ms = NOON_MS - NOON_MS % DAY_MS, NOON_MS - NOON_MS % DAY_MS + DAY_MS
    assert first.pop("timestamp").endswith("Z")
    assert first.pop("idempotencyKey").startswith("alt_")
    assert first == {
        "type": "LIMIT_ALERT",
        "data": {
            "groupId": group,
            "externalEntityId": "customer",
            "limit": {
                "kind": "USAGE",
                "type": "REQUEST",
                "unit": "DAY",
                "threshold": 10,
                "currency": None,
                "slug": SLUG,
            },
            "used": 5,
            "percent": 50,
            "window": {"start": time_text(start_ms), "end": time_text(end_ms)},
        },
    }
    assert [one["data"]["percent"] for one in others] == [80, 100]
    scene.counts.clock_ms += DAY_MS
    assert await scene.look(group, use=5) == alerts(50), "another window"


async def test_controls_that_look_at_one_moment_tell_each_percent_once(scene: Scene, database_url: str) -> None:
    group = await scene.group("customer", alert_percents=[20, 50, 80, 90, 100])
    webhooks = [await scene.webhook() for _ in range(2)]
    other = Store.at(database_url)
    looks = [scene.look(group, use=10, store=store) for _ in range(25) for store in (scene.plane.store, other)]
    crossings = [one for some in await asyncio.gather(*looks) for one in some]
    await other.close()
    assert sorted(crossings) == alerts(20, 50, 80, 90, 100)
    keys = [[one["idempotencyKey"] for one in await scene.messages(webhook)] for webhook in webhooks]
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == 5


async def test_raised_limit_rearms_the_percents_above_what_is_used(scene: Scene) -> None:
    group = await scene.group("customer", alert_percents=[50, 80, 100])
    await scene.look(group, use=10)
    await scene.change(group, models=limited(20))
    assert await scene.look(group) == []
    assert await scene.look(group, use=15) == []
    assert await scene.look(group, use=16) == alerts(80)
    assert await scene.look(group, use=20) == alerts(100)


async def test_calls_right_after_a_raise_tell_what_was_above_the_use_then(scene: Scene) -> None:
    """No look comes between the raise and the calls. 50 % of 20 was used already."""
    group = await scene.group("customer", alert_percents=[50, 80, 100])
    await scene.look(group, use=10)
    await scene.change(group, models=limited(20))
    assert await scene.look(group, use=20) == alerts(80, 100)


async def test_use_above_the_old_limit_is_not_told_again_after_a_raise(scene: Scene) -> None:
    """Tokens may exceed a limit: 70 % of 20 was used when it was raised."""
    group = await scene.group("customer", alert_percents=[70], models=limited(10, type="TOKEN"))
    assert await scene.look(group, use=15) == alerts(70)
    await scene.change(group, models=limited(20, type="TOKEN"))
    assert await scene.look(group, use=19) == []


async def test_lowered_limit_tells_only_what_it_crosses(scene: Scene) -> None:
    group = await scene.group("customer", alert_percents=[50, 80], models=limited(20))
    await scene.look(group, use=10)
    await scene.change(group, models=limited(12))
    assert await scene.look(group) == alerts(80)
    await scene.change(group, models=limited(20))
    assert await scene.look(group) == []
    assert await scene.look(group, use=16) == alerts(80), "raised: above what was used"


async def test_lost_counters_tell_nothing_again(scene: Scene) -> None:
    group = await scene.group("customer", alert_percents=[50])
    await scene.look(group, use=9)
    assert await scene.look(group, use=0) == []
    assert await scene.look(group, use=9) == []


async def test_added_percent_is_told_if_it_is_crossed(scene: Scene) -> None:
    group = await scene.group("customer", alert_percents=[90])
    await scene.look(group, use=6)
    await scene.change(group, alert_percents=[50, 90])
    assert await scene.look(group) == alerts(50)
    await scene.change(group, alert_percents=[])
    assert await scene.look(group, use=10) == []


async def test_independent_group_is_told_of_by_the_percents_of_whoever_sets_the_limit(scene: Scene) -> None:
    parent = await scene.group("parent", alert_percents=[50])
    below = {"parent_group_id": parent}
    heir = await scene.group("heir", models=[{"slug": SLUG}], hierarchy=below)
    own = await scene.group("own", models=limited(10), hierarchy=below)
    webhook = await scene.webhook()
    assert await scene.look(heir, own, use=5) == alerts(50)
    scene.counts.requests[own] = 10
    assert await scene.look(heir, own) == [], "its own limit has no percents"
    (message,) = await scene.messages(webhook)
    assert message["data"]["groupId"] == heir
    assert message["data"]["externalEntityId"] == "heir"


async def test_cascading_limit_is_told_of_the_group_that_counts(scene: Scene) -> None:
    mode = {"limit_enforcement": "CASCADING"}
    root = await scene.group("root", models=limited(20), alert_percents=[50], hierarchy=mode)
    child = await scene.group("child", models=limited(10), hierarchy={"parent_group_id": root})
    webhook = await scene.webhook()
    scene.counts.requests = {child: 10, root: 10}
    assert await scene.look(child) == alerts(50), "a call of the child makes the root looked at"
    (message,) = await scene.messages(webhook)
    assert message["data"]["groupId"] == root
    assert message["data"]["limit"]["threshold"] == 20


async def test_webhook_of_a_group_hears_of_that_group_and_those_below_alone(scene: Scene) -> None:
    root = await scene.group("root", alert_percents=[50])
    groups = [await scene.group(entity, hierarchy={"parent_group_id": root}) for entity in ("ours", "sibling")]
    below = await scene.group("below", hierarchy={"parent_group_id": groups[0]})
    webhook = await scene.webhook(group_id=groups[0], event_types=BOTH)
    everything = await scene.webhook(event_types=BOTH)
    for group in (root, *groups, below):
        await scene.change(group, alert_percents=[50])
        await scene.look(group, use=5)
    ours = {groups[0], below}
    assert {one["data"]["groupId"] for one in await scene.messages(webhook)} == ours
    assert {one["data"]["groupId"] for one in await scene.messages(everything)} == {root, *groups, below}
    ingest, _ = ingest_and_reader(scene.plane.store, outbox=outbox)
    order = (root, *groups, below)
    workspace = scene.plane.workspace_id
    await ingest.commit([event(n, group_id=group, workspace_id=workspace) for n, group in enumerate(order)])
    keys = await event_numbers(scene, webhook)
    assert {order[n] for n in keys} == ours
    assert sorted(await event_numbers(scene, everything)) == [0, 1, 2, 3]


async def event_numbers(scene: Scene, webhook: str) -> list[int]:
    query = select(webhook_deliveries.c.event_keys).where(webhook_deliveries.c.webhook_id == webhook)
    async with scene.plane.store.read() as conn:
        return [int(key[3:]) for keys in (await conn.execute(query)).scalars() for key in orjson.loads(keys)]


async def test_webhook_is_told_of_the_types_that_it_asks_for(scene: Scene) -> None:
    group = await scene.group("customer", alert_percents=[50])
    billing = (await scene.plane.post(WEBHOOKS, {"url": "https://hooks.example.com/in"})).ok()
    assert billing["event_types"] == ["API_BILLING_USAGE"]
    assert billing["group_id"] is None
    off = await scene.webhook()
    (await scene.plane.patch(f"{WEBHOOKS}/{off}", {"enabled": False})).ok()
    webhook = await scene.webhook()
    await scene.look(group, use=5)
    ingest, _ = ingest_and_reader(scene.plane.store, outbox=outbox)
    await ingest.commit([event(1, workspace_id=scene.plane.workspace_id, group_id=group)])
    assert [len(await scene.messages(one)) for one in (billing["id"], off, webhook)] == [0, 0, 1]
    assert [await event_numbers(scene, one) for one in (billing["id"], off, webhook)] == [[1], [], []]
    changed = (await scene.plane.patch(f"{WEBHOOKS}/{webhook}", {"event_types": BOTH[::-1]})).ok()
    assert changed["event_types"] == BOTH


async def test_delivery_that_is_sent_again_has_the_same_key(scene: Scene) -> None:
    group = await scene.group("customer", alert_percents=[50])
    webhook = await scene.webhook()
    await scene.look(group, use=5)
    before = await scene.messages(webhook)
    (delivery,) = (await scene.plane.get(f"{WEBHOOKS}/{webhook}/deliveries")).ok()["items"]
    assert (delivery["type"], delivery["event_count"]) == ("LIMIT_ALERT", 0)
    (await scene.plane.post(f"{WEBHOOKS}/{webhook}/deliveries/{delivery['id']}/redeliver")).ok()
    assert await scene.messages(webhook) == before


async def test_change_of_the_group_during_a_look_leaves_it_for_the_next_one(scene: Scene) -> None:
    """The look has read a limit of 10, of which all is used. By the one of 20 nothing is to be told."""
    group = await scene.group("customer", alert_percents=[80])

    async def raise_the_limit() -> None:
        await scene.change(group, models=limited(20))

    scene.counts.before_reading = raise_the_limit
    assert await scene.look(group, use=10) == []
    assert await scene.look(group) == []


async def test_yesterdays_last_calls_are_told_of_after_midnight(scene: Scene) -> None:
    group = await scene.group("customer", alert_percents=[50])
    webhook = await scene.webhook()
    midnight_ms, _ = window_at(Unit.DAY, NOON_MS + DAY_MS)
    scene.counts = Counts({group: 1}, midnight_ms + 5_000, {group: 6})
    assert await scene.look(group) == alerts(50)
    (message,) = await scene.messages(webhook)
    assert message["data"]["window"]["end"] == time_text(midnight_ms)
    assert await scene.look(group, use=5) == alerts(50)


async def test_refusal_of_a_full_limit_is_told_once(scene: Scene) -> None:
    """It needs no percents."""
    group = await scene.group("customer")
    webhook = await scene.webhook()
    assert await scene.look(group, use=10) == [], "nobody was refused"
    for _ in range(3):
        await scene.refuse(group)
    assert await scene.look(group) == REACHED
    await scene.refuse(group)
    assert await scene.look(group) == []
    (message,) = await scene.messages(webhook)
    assert (message["type"], message["data"]["used"], message["data"]["percent"]) == ("LIMIT_REACHED", 10, 100)
    await scene.change(group, models=limited(12))
    assert await scene.look(group, use=11) == []
    await scene.refuse(group)
    assert await scene.look(group, use=11) == [], "it has room"
    await scene.refuse(group)
    assert await scene.look(group, use=12) == REACHED, "it was raised and is full again"
    assert await scene.refusals() == 0


async def test_refusals_are_kept_only_for_workspaces_that_are_to_be_told(scene: Scene) -> None:
    group = await scene.group("customer")
    await scene.refuse(group)
    assert await scene.refusals() == 0
    await scene.webhook()
    await scene.refuse(group, workspace_id="ws_other")
    await scene.refuse("grp_gone")
    assert await scene.refusals() == 0
    await scene.refuse(group)
    assert await scene.refusals() == 1
    (await scene.plane.delete(f"{GROUPS}/{group}")).ok()
    assert await scene.watch() == []
    assert await scene.refusals() == 0


async def test_limit_of_zero_is_reached_and_crosses_no_percent(scene: Scene) -> None:
    group = await scene.group("customer", models=limited(0), alert_percents=[1, 100])
    await scene.webhook()
    assert await scene.look(group) == []
    await scene.refuse(group)
    assert await scene.look(group) == REACHED


async def test_month_and_day_of_every_type_are_told_of_apart(scene: Scene) -> None:
    types = ("REQUEST", "TOKEN", "UNCACHED_INPUT_TOKEN", "OUTPUT_TOKEN")
    limits = [{"type": type, "unit": unit, "threshold": 10} for type in types for unit in ("DAY", "MONTH")]
    group = await scene.group("customer", models=[{"slug": SLUG, "usage_limits": limits}], alert_percents=[50])
    webhook = await scene.webhook()
    assert len(await scene.look(group, use=5)) == 8
    kinds = {(one["data"]["limit"]["type"], one["data"]["limit"]["unit"]) for one in await scene.messages(webhook)}
    assert kinds == {(limit["type"], limit["unit"]) for limit in limits}


async def test_rate_limits_have_no_alerts(scene: Scene) -> None:
    rate = [{"slug": SLUG, "rate_limits": [{"type": "REQUEST", "unit": "MINUTE", "threshold": 10}]}]
    group = await scene.group("customer", models=rate, alert_percents=[50])
    assert await scene.look(group, use=10) == []
    assert scene.counts.reads == 0


async def test_watch_finds_every_watched_group_without_a_note(scene: Scene) -> None:
    """No group is noted after a restart."""
    independent = await scene.group("root", alert_percents=[50])
    heirs = [await scene.group(f"heir-{n}", hierarchy={"parent_group_id": independent}, models=[{"slug": SLUG}])
             for n in range(5)]  # fmt: skip
    cascading = await scene.group("cascading", hierarchy={"limit_enforcement": "CASCADING"}, alert_percents=[50])
    deep = await scene.group("deep", hierarchy={"parent_group_id": cascading}, alert_percents=[50], models=limited(5))
    alone = [await scene.group(f"alone-{n}", alert_percents=[50]) for n in range(4)]
    unwatched = await scene.group("unwatched")
    watched = {independent, *heirs, cascading, deep, *alone}
    scene.counts.requests = dict.fromkeys({*watched, unwatched}, 9)
    assert await scene.watch() == ["LIMIT_ALERT"] * len(watched)
    assert scene.counts.reads == len(watched), "nothing is read of a group that nobody watches"


async def test_round_goes_on_in_portions(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control.resources.alerts.watch.ROUND_AT_ONCE", 2)
    assert ROUND_AT_ONCE > 2
    root = await scene.group("root", alert_percents=[50])
    heirs = [await scene.group(f"heir-{n}", hierarchy={"parent_group_id": root}, models=[{"slug": SLUG}])
             for n in range(4)]  # fmt: skip
    alone = await scene.group("alone", alert_percents=[50])
    scene.counts.requests = dict.fromkeys({root, *heirs, alone}, 9)
    assert await scene.watch(turns=1) == ["LIMIT_ALERT"] * 2
    assert await scene.watch(turns=5) == ["LIMIT_ALERT"] * 4


async def test_what_could_not_be_looked_at_is_due_again(scene: Scene) -> None:
    group = await scene.group("customer", alert_percents=[50])
    scene.counts.requests[group] = 5
    messages: list[str] = []
    watch = AlertWatch(scene.plane.store, scene.sources, messages.append)
    await watch.look()
    scene.counts.requests[group] = 10
    await scene.change(group, alert_percents=[50, 100])
    watch.note([(scene.plane.workspace_id, group)])
    scene.counts.is_away = True
    with pytest.raises(UsageUnavailableError):
        await watch.look()
    scene.counts.is_away = False
    await watch.look()
    assert messages == ["LIMIT_ALERT"] * 2


def test_workspaces_take_turns_with_their_noted_groups() -> None:
    noted = NotedGroups()
    noted.add(("busy", f"b{n}") for n in range(1000))
    noted.add([("quiet", "q1"), ("quiet", "q2"), ("quiet", "q1")])
    groups = noted.pop(100)
    assert groups["quiet"] == ["q1", "q2"]
    assert len(groups["busy"]) == 98
    assert sum(len(noted.pop(500)["busy"]) for _ in range(2)) == 902
    assert noted.pop(500) == {}


async def test_old_alerts_are_deleted(scene: Scene) -> None:
    group = await scene.group("customer", alert_percents=[50])
    now_ms = await clock_ms(scene.plane.store)
    scene.counts.clock_ms = now_ms - now_ms % DAY_MS - (ALERT_DAYS + 1) * DAY_MS + DAY_MS // 2
    await scene.look(group, use=5)
    scene.counts.clock_ms += 3 * DAY_MS
    await scene.look(group, use=5)
    await delete_old_records(scene.plane.store, RetentionDays(92, 400, 400))
    async with scene.plane.store.read() as conn:
        assert len((await conn.execute(select(limit_alerts))).all()) == 1


@pytest.mark.parametrize(
    ("percents", "reason"),
    [([0], "greater"), ([101], "less"), ([1, 2, 3, 4, 5, 6], "5"), ([50, 50], "once"), ([1.5], "integer"), ("50", "")],
)
async def test_illegal_percents_are_refused_with_the_rule(scene: Scene, percents: Any, reason: str) -> None:
    body = {"metadata": {"external_entity_id": "customer"}, "models": limited(10), "alert_percents": percents}
    refusal = (await scene.plane.post(GROUPS, body)).refused(400)
    assert "alert_percents" in orjson.dumps(refusal).decode()
    assert reason in refusal["error"]
    group = await scene.group("customer")
    (await scene.plane.patch(f"{GROUPS}/{group}", {"alert_percents": percents})).refused(400)


async def test_percents_are_shown_in_order_and_audited(scene: Scene) -> None:
    group = await scene.group("customer", alert_percents=[80, 50.0])
    answer = (await scene.plane.get(f"{GROUPS}/{group}")).ok()
    assert answer["alert_percents"] == [50, 80]
    await scene.change(group, metadata={"name": "Customer"})
    assert (await scene.plane.get(f"{GROUPS}/{group}")).ok()["alert_percents"] == [50, 80]
    await scene.change(group, alert_percents=[10])
    entry = (await scene.plane.get("/v1/audit_events")).ok()["items"][0]
    assert (entry["before"]["alert_percents"], entry["after"]["alert_percents"]) == ([50, 80], [10])


async def test_webhook_of_a_foreign_or_missing_group_is_refused(scene: Scene) -> None:
    other = await scene.plane.another_workspace()
    group = await scene.group("customer")
    body = {"url": "https://hooks.example.com/in", "group_id": group}
    (await scene.plane.post(WEBHOOKS, body, key=other["api_key"])).refused(404)
    (await scene.plane.post(WEBHOOKS, {**body, "group_id": "grp_none"})).refused(404)
    (await scene.plane.post(WEBHOOKS, {**body, "event_types": []})).refused(400)
    (await scene.plane.post(WEBHOOKS, {**body, "event_types": ["ELSE"]})).refused(400)
    webhook = (await scene.plane.post(WEBHOOKS, body)).ok()
    assert webhook["group_id"] == group
    (await scene.plane.patch(f"{WEBHOOKS}/{webhook['id']}", {"group_id": group})).refused(400)


# --- spend limits ----------------------------------------------------------------------------------------------------


def spend_limit(amount: str, unit: str = "DAY") -> Json:
    return {"unit": unit, "amount": amount, "currency": "EUR"}


async def test_percent_of_a_spend_limit_is_told_by_exact_amounts(scene: Scene) -> None:
    limits = [spend_limit("10"), spend_limit("100", "MONTH")]
    group = await scene.group("customer", alert_percents=[50], spend_limits=limits)
    webhook = await scene.webhook()
    scene.counts.spent[group] = "4.9999999999999999999999"
    assert await scene.look(group) == []
    scene.counts.spent[group] = "5"
    assert await scene.look(group) == alerts(50)
    assert await scene.look(group) == []
    (message,) = await scene.messages(webhook)
    start_ms, end_ms = window_at(Unit.DAY, NOON_MS)
    assert message["data"] == {
        "groupId": group,
        "externalEntityId": "customer",
        "limit": {
            **{"kind": "SPEND", "type": None, "unit": "DAY"},
            **{"amount": "10.00", "currency": "EUR", "slug": None},
        },
        "used": "5.00",
        "percent": 50,
        "window": {"start": time_text(start_ms), "end": time_text(end_ms)},
    }


async def test_raised_amount_rearms_the_percents_above_what_is_spent(scene: Scene) -> None:
    group = await scene.group("customer", alert_percents=[50, 100], spend_limits=[spend_limit("0.000000000002")])
    scene.counts.spent[group] = "0.000000000002"
    assert await scene.look(group) == alerts(50, 100)
    await scene.change(group, spend_limits=[spend_limit("0.000000000003")])
    assert await scene.look(group) == []
    scene.counts.spent[group] = "0.000000000003"
    assert await scene.look(group) == alerts(100)


async def test_first_refusal_of_a_full_spend_limit_is_told(scene: Scene) -> None:
    await scene.webhook()
    group = await scene.group("customer", spend_limits=[spend_limit("10")])
    await scene.refuse(group, slug="", type="")
    scene.counts.spent[group] = "9.99"
    assert await scene.look(group) == [], "calls in flight have refused it"
    await scene.refuse(group, slug="", type="")
    scene.counts.spent[group] = "10"
    assert await scene.look(group) == [("LIMIT_REACHED", 100)]
    assert await scene.refusals() == 0


async def test_hard_limit_is_reached_by_a_refusal_although_some_of_it_is_left(scene: Scene) -> None:
    await scene.webhook()
    hard = spend_limit("10") | {"enforcement": "HARD"}
    group = await scene.group("customer", alert_percents=[50], spend_limits=[hard])
    scene.counts.spent[group] = "9.99"
    assert await scene.look(group) == alerts(50)
    await scene.refuse(group, slug="", type="")
    assert await scene.look(group) == [("LIMIT_REACHED", 100)]
    await scene.refuse(group, slug="", type="")
    assert await scene.look(group) == []
    await scene.change(group, spend_limits=[hard | {"amount": "20"}])
    await scene.look(group)
    await scene.refuse(group, slug="", type="")
    assert await scene.look(group) == [("LIMIT_REACHED", 100)], "it was raised, and refuses again"


async def test_spend_of_a_tree_is_told_where_it_is_counted(scene: Scene) -> None:
    root = await scene.group(
        "root", alert_percents=[50], spend_limits=[spend_limit("10")], hierarchy={"limit_enforcement": "CASCADING"}
    )
    child = await scene.group("child", hierarchy={"parent_group_id": root})
    heir = await scene.group("heir", alert_percents=[90], spend_limits=[spend_limit("10")])
    below = await scene.group("below", hierarchy={"parent_group_id": heir})
    webhook = await scene.webhook()
    scene.counts.spent |= {root: "5", child: "5", below: "9"}
    assert await scene.look(child, below) == [*alerts(50), *alerts(90)]
    assert [one["data"]["groupId"] for one in await scene.messages(webhook)] == [root, below]


async def test_tree_that_is_not_counted_yet_is_told_of_later_and_hinders_no_other_alert(scene: Scene) -> None:
    group = await scene.group("customer", alert_percents=[50], spend_limits=[spend_limit("10")])
    scene.counts.spent[group] = "5"
    scene.counts.is_spend_counted = False
    assert await scene.look(group, use=5) == alerts(50)
    scene.counts.is_spend_counted = True
    assert await scene.look(group) == alerts(50)
