"""A machine of hypothesis: two control processes, a machine with two workers, and an operator, on prepaid balances.

The scripts, the ledger, ingest and the counting are the real ones.
"""

import asyncio
import contextlib
import math
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

import redis
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from sqlalchemy import select
from ulid import ULID

from control.edges.redis.spend.spend_hashes import SpendHashes
from control.edges.sql.group_rows import balance_of, spend_limits_of
from control.edges.sql.spend.tables import balance_credits, balance_draws
from control.edges.sql.store import now_ms
from control.edges.sql.tables import events, groups
from control.errors import NotEnoughCreditError, SpendNotCountedError, UsageUnavailableError
from control.records.spend import SpendTree, Withdrawal
from control.resources.billing_events import EventReader
from control.resources.spend.balances import BalanceFigures, Ledger, NewCredit, credit_group, read_balance
from control.resources.spend.counting import SpendCounting
from control.resources.spend.machines import note_machine
from control.resources.spend.sweep import sweep_tree
from policy.billing import BillingEvent, Tokens
from policy.limits.groups import Enforcement
from policy.prices import DAY_MS, amount_text
from policy.spend.balances import balance_name
from policy.spend.effective import SpendPlan, spend_plan
from policy.spend.spend_hash import (
    LIMB,
    RESERVED_PREFIX,
    Reserved,
    spent_field,
    unpack_amount,
    unpack_spent,
)
from proxy.edges.redis.scripts import CLOCK
from proxy.edges.redis.spend.scripts import (
    Arguments,
    SpendScripts,
    call_arguments,
    given_back_arguments,
    hard_call_arguments,
    reservation_arguments,
    take_template,
)
from tests.contracts.redis.spend_world import decoded
from tests.control.billing import ShiftedClock, event, ingest_and_reader
from tests.control.plane import ControlPlane
from tests.control.reports import price

HOLDBACK_S = 60.0
HOUR_MS = 3_600_000
MACHINE = "host"
OLD_MS = 400_000
"""The age of the calls' keys: the sweep spares younger reservations of the dead."""
UNITS = 10**22
TOKEN = Decimal("0.000001000000000001")
"""The first price of a token: each call costs a part of a pico."""
SCRIPTS = SpendScripts.load(CLOCK)
AMOUNTS = st.integers(20, 100).map(lambda tokens: tokens * Decimal("0.000001"))
PLACES = st.integers(0, 3)
TOKENS = st.integers(5, 60)
SHARES = st.one_of(st.just(1.0), st.floats(0, 1))
BALANCES = (0, 1)
"""The places of the groups that have a balance: the root, and its first child, which has a child below it."""


ACTIONS = ("pull", "confirm", "make_whole", "make_whole", "sweep", "pass_midnight", "restart_control")


class OpenCall(NamedTuple):
    """An admitted call. `most`: the tokens that its reservation pays for."""

    key: str
    place: int
    plan: SpendPlan
    reserved: Reserved
    most: int


@dataclass
class Shared:
    """The world of all examples: one database, one Redis, one clock, which only goes forward.

    It stays off midnight by more than a run takes: open calls pass it only where a rule says so.
    """

    loop: asyncio.AbstractEventLoop
    plane: ControlPlane
    hashes: SpendHashes
    client: "redis.Redis"
    clock: ShiftedClock
    ledger: Ledger
    example: int = 0

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def now_ms(self) -> int:
        return now_ms() + self.clock.offset_ms

    def pass_midnight(self) -> None:
        self.clock.offset_ms += DAY_MS - self.now_ms() % DAY_MS + 60_000


@dataclass
class Tree:
    """The groups of one example, by place, and the prices of its slug: (valid from, of a token)."""

    slug: str
    ids: list[str]
    paths: list[str]
    mode: Enforcement
    workspace_id: str
    prices: list[tuple[int, Decimal]]
    plans: list[SpendPlan] = field(default_factory=list)

    @property
    def record(self) -> SpendTree:
        return SpendTree(self.ids[0], self.workspace_id, self.mode, "EUR", is_hard=True)

    def price_at(self, at_ms: int) -> Decimal:
        return max(price for valid_from_ms, price in self.prices if valid_from_ms <= at_ms)

    @property
    def dearest(self) -> Decimal:
        return self.prices[-1][1]


def picos_of(amount: Decimal) -> int:
    return math.ceil(amount * LIMB)


def old_key() -> str:
    return str(ULID.from_timestamp((now_ms() - OLD_MS) / 1000))


class Machine(RuleBasedStateMachine):
    """Drives two control processes, a machine with two workers, and an operator."""

    shared: Shared

    @initialize(cascading=st.booleans(), first=AMOUNTS, second=AMOUNTS)
    def plant(self, cascading: bool, first: Decimal, second: Decimal) -> None:
        self.shared.client.flushall()
        self.shared.example += 1
        self.credits: dict[int, list[tuple[str, Decimal]]] = {place: [] for place in BALANCES}
        self.open: dict[str, OpenCall] = {}
        self.journal: list[BillingEvent] = []
        self.committed: list[BillingEvent] = []
        self.workers = [self._incarnation(), self._incarnation()]
        self.jobs = [self._job(), self._job()]
        self.tree: Tree = self.shared.run(self._planted("CASCADING" if cascading else "INDEPENDENT"))
        self.credit(0, first)
        self.credit(1, second)
        self.pull()
        self.make_whole()

    async def _planted(self, mode: str) -> Tree:
        plane = self.shared.plane
        number = self.shared.example
        ids: list[str] = []
        paths: list[str] = []
        for name, parent in (("root", None), ("team", 0), ("low", 1), ("side", 0)):
            more = {} if parent is not None else {"mode": mode}
            above = None if parent is None else ids[parent]
            ids.append((await plane.group(f"{name}-{number}", above, **more))["id"])
            paths.append(("" if parent is None else paths[parent]) + ids[-1] + "/")
        slug = f"acme/slug-{number}"
        tree = Tree(slug, ids, paths, Enforcement(mode), plane.workspace_id, [(0, TOKEN)])
        await self._set_price(tree, 0, TOKEN)
        return tree

    async def _set_price(self, tree: Tree, valid_from_ms: int, token: Decimal) -> None:
        per_million = {"input_per_million": "0", "cached_input_per_million": "0"}
        more = {"output_per_million": amount_text(token * 10**6)} | per_million
        await price(self.shared.plane, tree.slug, valid_from_ms, **more)

    def _incarnation(self) -> str:
        return ULID().hex[-16:]

    def _job(self) -> SpendCounting:
        shared = self.shared
        reader = EventReader(shared.plane.store, HOLDBACK_S, shared.clock)
        return SpendCounting(shared.plane.store, reader, shared.hashes, lambda _places: None, self._overrun)

    def _overrun(self, reason: str) -> None:
        raise AssertionError(f"an overrun was counted: {reason}")

    # --- the operator ------------------------------------------------------------------------------------------------

    @rule(place=st.sampled_from(BALANCES), amount=AMOUNTS, is_pulled=st.booleans())
    def credit(self, place: int, amount: Decimal, is_pulled: bool = True) -> None:
        self._change(place, amount)
        if is_pulled and self.tree.plans:
            self.pull()

    @rule(place=st.sampled_from(BALANCES), amount=st.one_of(AMOUNTS, st.just(Decimal("0.000001"))))
    def withdraw(self, place: int, amount: Decimal) -> None:
        self._change(place, -amount)

    def _change(self, place: int, amount: Decimal) -> None:
        reference = f"reference-{len(self.credits[place])}"
        try:
            self.shared.run(self._credited(place, amount, reference))
        except (NotEnoughCreditError, UsageUnavailableError):
            assert amount < 0
            return
        self.credits[place].append((reference, amount))

    async def _credited(self, place: int, amount: Decimal, reference: str) -> Any:
        new = NewCredit(amount, "EUR", reference)
        return await credit_group(self.shared.ledger, self.tree.workspace_id, self.tree.ids[place], new)

    @precondition(lambda self: any(self.credits.values()))
    @rule(place=st.sampled_from(BALANCES), number=st.integers(0, 100))
    def credit_again(self, place: int, number: int) -> None:
        credits = self.credits[place]
        reference, amount = credits[number % len(credits)]
        self.shared.run(self._credited(place, amount, reference))

    @rule(place=st.sampled_from(BALANCES), amount=AMOUNTS)
    def withdraw_and_crash(self, place: int, amount: Decimal) -> None:
        """Control dies between Redis and the database."""
        withdrawal = Withdrawal(
            tree_key=self.tree.record.key,
            currency="EUR",
            group_id=self.tree.ids[place],
            deposited=self._deposited(place),
            amount=amount,
            key=old_key(),
        )
        with contextlib.suppress(SpendNotCountedError):
            self.shared.run(self.shared.hashes.withdraw(withdrawal))

    def _deposited(self, place: int) -> Decimal:
        return sum((amount for _, amount in self.credits[place] if amount > 0), Decimal(0))

    @rule(rise=st.sampled_from((Decimal("1.000000000001"), Decimal(2))))
    def raise_tomorrows_price(self, rise: Decimal) -> None:
        """Raise it, or raise it again."""
        valid_from_ms = (self.shared.now_ms() // DAY_MS + 1) * DAY_MS
        token = (self.tree.dearest * rise).quantize(Decimal("1e-18"))
        if token > Decimal("0.000005"):
            return
        self.tree.prices = [one for one in self.tree.prices if one[0] != valid_from_ms] + [(valid_from_ms, token)]
        self.shared.run(self._set_price(self.tree, valid_from_ms, token))

    # --- the proxy ---------------------------------------------------------------------------------------------------

    def pull(self) -> None:
        """Read the policy. Until then the proxy knows less credit."""
        self.tree.plans = self.shared.run(self._plans())

    async def _plans(self) -> list[SpendPlan]:
        columns = (groups.c.id, groups.c.balance, groups.c.spend_limits)
        query = select(*columns).where(groups.c.root_id == self.tree.ids[0])
        async with self.shared.plane.store.read() as conn:
            rows = {row.id: row for row in await conn.execute(query)}
        plans = []
        for path in self.tree.paths:
            ids = path.split("/")[-2::-1]
            limits = [spend_limits_of(rows[id].spend_limits) for id in ids]
            plan = spend_plan(ids, self.tree.mode, limits, [balance_of(rows[id].balance) for id in ids])
            assert plan is not None
            plans.append(plan)
        return plans

    @rule(place=PLACES, tokens=TOKENS, least=st.integers(1, 5), worker=st.integers(0, 1))
    def take(self, place: int, tokens: int, least: int, worker: int) -> None:
        client = self.shared.client
        plan = self.tree.plans[place]
        dearest = self.tree.dearest
        key = old_key()
        whole, lowest = (picos_of(one * dearest) for one in (max(tokens, least), min(tokens, least)))
        question = hard_call_arguments(key, whole, lowest)
        arguments = [*take_template(plan, self.workers[worker]), *decoded(question)]
        reply: Any = client.eval(SCRIPTS.take.text.decode(), 1, plan.key, *arguments)
        if reply == -1 or not reply or not reply[0]:
            return
        if reply[3].decode() != client.info("replication")["master_replid"]:
            self._end(plan.key, given_back_arguments(key))
            return
        picos = unpack_amount(reply[4]) if reply[4] else whole
        reserved = Reserved(picos, self.workers[worker], plan.groups)
        most = int(Decimal(picos) / LIMB / dearest)
        assert most >= min(tokens, least)
        self.open[key] = OpenCall(key, place, plan, reserved, most)

    def _end(self, tree_key: str, *ends: Arguments) -> None:
        arguments = [argument for end in ends for argument in decoded(end)]
        assert self.shared.client.eval(SCRIPTS.end.text.decode(), 1, tree_key, *arguments) == len(ends)

    @rule(calls=st.lists(st.tuples(PLACES, TOKENS), min_size=1, max_size=4), share=SHARES)
    def call(self, calls: list[tuple[int, int]], share: float) -> None:
        """Make some calls at once, of which the first ones end."""
        before = len(self.open)
        for place, tokens in calls:
            self.take(place, tokens, 1, 0)
        for _ in range(len(self.open) - before - 1):
            self.end(0, share, True)

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, 100))
    def give_back(self, number: int) -> None:
        call = self._closed(number)
        self._end(call.plan.key, given_back_arguments(call.key))

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, 100), share=SHARES, is_sent=st.booleans())
    def end(self, number: int, share: float, is_sent: bool) -> None:
        """End a call. Its end may come late, or never."""
        call = self._closed(number)
        one = self._event(call, round(call.most * share))
        self.journal.append(one)
        if is_sent:
            cost = one.tokens.output * self.tree.price_at(one.ended_at_ms)
            self._end(call.plan.key, call_arguments(call.key, picos_of(cost)))

    def _closed(self, number: int) -> OpenCall:
        return self.open.pop(sorted(self.open)[number % len(self.open)])

    def _event(self, call: OpenCall, tokens: int) -> BillingEvent:
        assert call.plan.balance is not None
        more = {"idempotency_key": call.key, "balance_group": call.plan.balance.group_id, "model_slug": self.tree.slug}
        places = {"group_id": self.tree.ids[call.place], "group_path": self.tree.paths[call.place]}
        workspace = {"workspace_id": self.tree.workspace_id, "tokens": Tokens(output=tokens)}
        return event(1, self.shared.now_ms(), **more, **places, **workspace)

    @precondition(lambda self: self.journal)
    @rule(count=st.integers(1, 5), is_repeated=st.booleans())
    def commit(self, count: int, is_repeated: bool) -> None:
        """Ship some of the journal; a batch whose answer was lost comes again."""
        some = self.journal[:count]
        self._commit(some)
        self.journal = self.journal[len(some) :]
        if is_repeated:
            self._commit(some)

    def _commit(self, some: list[BillingEvent]) -> None:
        ingest, _ = ingest_and_reader(self.shared.plane.store, HOLDBACK_S, clock=self.shared.clock)
        self.shared.run(ingest.commit(some))
        self.committed += [one for one in some if one not in self.committed]

    @rule(share=SHARES, dispatched=st.integers(0, 3))
    def kill_worker(self, share: float, dispatched: int) -> None:
        """The machine commits the calls of a dead worker that were dispatched, then names its incarnation no more."""
        dead = self.workers[1]
        own = [call for call in self.open.values() if call.reserved.incarnation == dead]
        for call in own:
            del self.open[call.key]
        self._commit([self._event(call, round(call.most * share)) for call in own[:dispatched]])
        self.workers[1] = self._incarnation()
        self._report({})

    def _report(self, confirmed: Any) -> Any:
        return self.shared.run(note_machine(self.shared.plane.store, MACHINE, self.workers, confirmed))

    def confirm(self) -> None:
        """Put the reservations of the calls in flight again, and commit the journal, where control waits for it."""
        states = self._report({})
        if self.tree.record.key not in states:
            return
        self._commit(self.journal)
        self.journal = []
        for call in self.open.values():
            self._end(call.plan.key, reservation_arguments(call.key, call.reserved))
        self._report(states)

    # --- control -----------------------------------------------------------------------------------------------------

    @rule(action=st.sampled_from(ACTIONS))
    def act(self, action: str) -> None:
        """Do what needs no choice. One rule, so that most steps are calls and money."""
        getattr(self, action)()

    @rule(job=st.integers(0, 1))
    def count(self, job: int) -> None:
        self.shared.run(self.jobs[job].count_all())

    def restart_control(self) -> None:
        self.jobs = [self._job(), self.jobs[0]]

    def make_whole(self) -> None:
        """Wait until calls are decided on again."""
        for _ in range(2):
            self.shared.run(self.jobs[0].count_all())
            self.confirm()
        self.shared.run(self.jobs[0].count_all())

    def sweep(self) -> None:
        shared = self.shared
        work = sweep_tree(shared.plane.store, shared.hashes, self.tree.record, are_machines_known=True)
        shared.run(work)

    # --- time and Redis ----------------------------------------------------------------------------------------------

    @rule(by_ms=st.sampled_from((1_000, 40_000, 100_000)))
    def pass_time(self, by_ms: int) -> None:
        if self.shared.now_ms() % DAY_MS + by_ms < DAY_MS - HOUR_MS:
            self.shared.clock.offset_ms += by_ms

    def pass_midnight(self) -> None:
        """Calls end before their deadline, and their events are committed then, by the prices that they reserved by."""
        if self.journal or self.open:
            return
        self.shared.pass_midnight()

    @rule(is_emptied=st.booleans(), heals=st.sampled_from((True, True, False)))
    def lose_redis(self, is_emptied: bool, heals: bool) -> None:
        """Redis starts without its data, or with it, which is another epoch all the same."""
        if is_emptied:
            self.shared.client.flushall()
        elif self.shared.client.hexists(self.tree.record.key, "e"):
            self.shared.client.hset(self.tree.record.key, mapping={"e": "another-epoch EUR", "h": "another-epoch"})
        if heals:
            self.make_whole()

    # --- the promise -------------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_drawn_above_the_credit(self) -> None:
        if hasattr(self, "tree"):
            self.shared.run(self._check_ledger())

    async def _check_ledger(self) -> dict[str, int]:
        """Check the ledger against events and credits; return what is drawn and withdrawn in units, by group."""
        tree = self.tree
        columns = events.c
        async with self.shared.plane.store.read() as conn:
            query = select(columns.timestamp_ms, columns.output_tokens, columns.balance_group, columns.draw)
            rows = list(await conn.execute(query.where(columns.model_slug == tree.slug)))
            draws = list(await conn.execute(select(balance_draws).where(balance_draws.c.group_id.in_(tree.ids))))
            credits = list(await conn.execute(select(balance_credits).where(balance_credits.c.group_id.in_(tree.ids))))
        assert len(rows) == len(self.committed)
        drawn: dict[str, int] = defaultdict(int)
        for row in rows:
            assert row.draw == str(int(row.output_tokens * tree.price_at(row.timestamp_ms) * UNITS))
            drawn[row.balance_group] += int(row.draw)
        ledger: dict[str, int] = defaultdict(int)
        for row in draws:
            ledger[row.group_id] += (row.whole * LIMB + row.picos) * 10**10 + row.last // 100
            assert row.last % 100 == 0
        assert {id: units for id, units in drawn.items() if units} == dict(ledger)
        for place in BALANCES:
            id = tree.ids[place]
            own = [Decimal(row.amount) for row in credits if row.group_id == id]
            assert sorted(own) == sorted(amount for _, amount in self.credits[place])
            assert int(sum(own) * UNITS) >= drawn[id]
            drawn[id] -= int(sum((amount for amount in own if amount < 0), Decimal(0)) * UNITS)
        return drawn

    def teardown(self) -> None:
        if not hasattr(self, "tree"):
            return
        for _ in list(self.open):
            self.end(0, 1.0, True)
        self._commit(self.journal)
        self.journal = []
        self.make_whole()
        self.shared.clock.offset_ms += 2 * int(HOLDBACK_S * 1000)
        self.jobs[1] = self._job()
        for job in (0, 1, 0):
            self.count(job)
            self.sweep()
        drawn = self.shared.run(self._check_ledger())
        fields: Any = self.shared.client.hgetall(self.tree.record.key)
        for place in BALANCES:
            id = self.tree.ids[place]
            name = balance_name(id)
            packed = fields.get(spent_field(name, None, 0).encode())
            assert (unpack_spent(packed) if packed else 0) == drawn[id]
            reserved = fields.get(f"{RESERVED_PREFIX}{name}".encode())
            assert not reserved or unpack_amount(reserved) == 0
            read = read_balance(self.shared.plane.store, self.shared.hashes, self.tree.workspace_id, id)
            assert self.shared.run(read) == self._figures(place, drawn[id])
        assert not [name for name in fields if name[:1] == b"p"]
        self.shared.run(self._forgotten())

    def _figures(self, place: int, drawn: int) -> BalanceFigures:
        """The balance when nothing is reserved. `drawn`: units, withdrawals included."""
        credited = sum((amount for _, amount in self.credits[place]), Decimal(0))
        rest = self._deposited(place) - Decimal(drawn) / UNITS
        return BalanceFigures("EUR", credited, credited - rest, Decimal(0), rest)

    async def _forgotten(self) -> None:
        """Delete the tree: the next example's turns would count it, too."""
        (await self.shared.plane.delete(f"/v1/gateway/groups/{self.tree.ids[0]}", params={"forfeit": "true"})).ok()
