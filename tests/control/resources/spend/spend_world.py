"""A tree of groups with a spend limit, calls of it, and the counting job on a real Redis."""

import random
import struct
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

import orjson
import redis
from sqlalchemy import insert, update
from ulid import ULID

from control.edges.redis.spend.spend_hashes import SpendHashes
from control.edges.sql.billing.price_rows import list_prices
from control.edges.sql.spend.tables import balance_credits, balance_draws
from control.edges.sql.store import now_ms
from control.edges.sql.tables import events, groups
from control.records.spend import SpendTree
from control.resources.billing_events import EventReader
from control.resources.spend.counting import SpendCounting
from control.resources.spend.tree_sums import kept_windows
from policy.billing import BillingEvent
from policy.limits.groups import Enforcement
from policy.limits.kinds import Unit
from policy.prices import Price, amount_of
from policy.spend.balances import balance_name
from policy.spend.spend_hash import pack_spent, spent_field, unpack_spent, window_name
from tests.control.api.test_cost_sums import calls_of, cost_of
from tests.control.billing import ShiftedClock, clock_ms, ingest_and_reader
from tests.control.plane import ControlPlane

HOUR_MS = 3_600_000
LIMITS = [{"unit": "MONTH", "amount": "100.00", "currency": "EUR", "enforcement": "SOFT"}]


class SpendWorld:
    """One tree: a root, two children, and a grandchild. Its events never get another timestamp."""

    def __init__(self, plane: ControlPlane, hashes: SpendHashes, client: "redis.Redis") -> None:
        self.plane = plane
        self.store = plane.store
        self.hashes = hashes
        self.client = client
        self.clock = ShiftedClock()
        self.paths: list[tuple[str, str]] = []
        self.calls: list[BillingEvent] = []
        self.prices: list[Price] = []
        self.now_ms = 0
        self.overruns: list[str] = []
        self.drawn: dict[str, int] = defaultdict(int)
        """The units drawn from the balance of each group, withdrawals included, through `drawn_until_ms`."""
        self.drawn_until_ms = 1 << 62
        self.buckets: dict[str, str] = {}
        """The bucket of each key of the tree that calls, by its prefix. Empty: calls have keys that nobody knows."""
        self._seed = 0

    @classmethod
    async def of(cls, plane: ControlPlane, hashes: SpendHashes, client: "redis.Redis", mode: str) -> "SpendWorld":
        world = cls(plane, hashes, client)
        client.flushall()
        world.now_ms = await clock_ms(plane.store)
        root = await plane.group("c-0", mode=mode)
        child = await plane.group("c-1", root["id"])
        other = await plane.group("c-2", root["id"])
        below = await plane.group("c-3", child["id"])
        parents = {"c-0": (), "c-1": (root,), "c-2": (root,), "c-3": (root, child)}
        for entity, own in (("c-0", root), ("c-1", child), ("c-2", other), ("c-3", below)):
            ids = [*(group["id"] for group in parents[entity]), own["id"]]
            world.paths.append((entity, "".join(f"{id}/" for id in ids)))
        await world.limit(child["id"])
        world.tree = SpendTree(root["id"], plane.workspace_id, Enforcement(mode), "EUR")
        return world

    tree: SpendTree

    async def limit(self, group_id: str, limits: Sequence[dict[str, str]] = LIMITS) -> None:
        text = orjson.dumps(limits).decode()
        async with self.store.write() as tx:
            await tx.conn.execute(update(groups).where(groups.c.id == group_id).values(spend_limits=text))

    async def deposit(self, group_id: str, amount: str = "100") -> None:
        """Give a group a balance, or set what was paid into it in all."""
        balance = {"currency": "EUR", "deposited": amount}
        text = orjson.dumps(balance).decode()
        async with self.store.write() as tx:
            await tx.conn.execute(update(groups).where(groups.c.id == group_id).values(balance=text))

    async def withdraw(self, group_id: str, at_ms: int, units: int) -> str:
        """Write a withdrawal as it is committed; returns its key. `units`: 10^-22, a multiple of 10^10."""
        key = str(ULID())
        values = {"key": key, "group_id": group_id, "reference": key, "amount": f"-{amount_of(units):f}"}
        async with self.store.write() as tx:
            await tx.conn.execute(insert(balance_credits).values(**values, timestamp_ms=at_ms))
        if at_ms <= self.drawn_until_ms:
            self.drawn[group_id] += units
        return key

    async def draw(self, group_id: str, calls: Sequence[BillingEvent], most: int = 10**24) -> None:
        """Have these calls draw random amounts from a balance, as they do when they are committed."""
        chance = random.Random(len(self.drawn))
        for call in calls:
            units = chance.randint(0, most)
            await self.draw_units(group_id, call, units)

    async def draw_units(self, group_id: str, call: BillingEvent, units: int) -> None:
        at_ms = call.ended_at_ms
        own = events.c.idempotency_key == call.idempotency_key
        hour = {"group_id": group_id, "hour_ms": at_ms // HOUR_MS * HOUR_MS, "slug": call.model_slug}
        limbs = dict(zip(("whole", "picos", "last"), struct.unpack("<QQQ", pack_spent(units)), strict=True))
        columns = balance_draws.c
        async with self.store.write() as tx:
            await tx.conn.execute(update(events).where(own).values(balance_group=group_id, draw=str(units)))
            place = [columns[name] == value for name, value in hour.items()]
            more = {name: columns[name] + value for name, value in limbs.items()} | {"calls": columns.calls + 1}
            if not (await tx.conn.execute(update(balance_draws).where(*place).values(**more))).rowcount:
                await tx.conn.execute(insert(balance_draws).values(**hour, **limbs, calls=1))
        if at_ms <= self.drawn_until_ms:
            self.drawn[group_id] += units

    async def read_prices(self) -> None:
        async with self.store.read() as conn:
            self.prices = list(await list_prices(conn, self.plane.workspace_id, None, None, 1000))

    async def call(self, first_ms: int, last_ms: int, count: int) -> list[BillingEvent]:
        """Commit random calls of the tree within this time."""
        self._seed += 1
        chance = random.Random(self._seed)
        calls = []
        for one in calls_of(self._seed, 0, count, self.plane.workspace_id):
            entity, path = chance.choice(self.paths)
            group = path.split("/")[-2]
            at_ms = chance.randint(first_ms, last_ms)
            more: dict[str, Any] = {
                "external_entity_id": entity,
                "group_id": group,
                "group_path": path,
                "ended_at_ms": at_ms,
            }
            if self.buckets:
                more["api_key_prefix"] = chance.choice([*self.buckets])
            calls.append(one._replace(**more))
        ingest, _ = ingest_and_reader(self.store, 1e9)
        await ingest.commit(calls)
        self.calls += calls
        return calls

    def job(self, **more: Any) -> SpendCounting:
        reader = EventReader(self.store, 0.0, self.clock)
        store, hashes = more.get("store", self.store), more.get("hashes", self.hashes)
        return SpendCounting(store, reader, hashes, more.get("note", lambda _places: None), self.overruns.append)

    async def pass_time(self, by_ms: int) -> int:
        """Let events through this time from now on be final; returns the time that was, and is, final."""
        self.clock.offset_ms += by_ms
        return await clock_ms(self.store) + self.clock.offset_ms

    def spent(self) -> dict[str, int]:
        """The spend that is counted: units by field, those that are not 0."""
        fields: Any = self.client.hgetall(self.tree.key)
        spent = {name.decode(): unpack_spent(value) for name, value in fields.items() if name[:1] == b"s"}
        return {name: units for name, units in spent.items() if units}

    def expected(self, windows: Collection[str]) -> dict[str, int]:
        """The same by the sum of what each call costs by itself, in these windows, and what is drawn."""
        spent: dict[str, int] = defaultdict(int)
        for call in self.calls:
            cost = cost_of(call, self.prices)
            if cost is None or cost[0] != "EUR":
                continue
            for unit in (Unit.DAY, Unit.MONTH):
                if window_name(unit, call.ended_at_ms) not in windows:
                    continue
                key = self.tree.counting_key(call.api_key_prefix, self.buckets)
                for group in (*self.tree.counting_groups(call.group_path), *key):
                    spent[spent_field(group, unit, call.ended_at_ms)] += int(cost[1] / amount_of(1))
        balances = {spent_field(balance_name(id), None, 0): units for id, units in self.drawn.items()}
        return {name: units for name, units in (spent | balances).items() if units}

    def check(self) -> None:
        """Check what is counted. Where a midnight has passed, a window that is no longer kept may be there, whole."""
        present = kept_windows(now_ms() + self.clock.offset_ms)
        spent = self.spent()
        before = {name: units for name, units in self.expected(kept_windows(self.now_ms)).items() if name in spent}
        assert spent == before | self.expected(present)
