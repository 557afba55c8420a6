"""take, end, count and withdraw do what the reference does: random trees, clocks, orders and repetitions."""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal

import pytest
import redis

from control.edges.redis.spend.scripts import count_arguments, script, withdraw_arguments
from control.records.spend import SpendTree, SpentEvent, TreeCount, Withdrawal
from policy.limits.groups import Enforcement
from policy.limits.kinds import Unit
from policy.limits.windows import DAY_MS
from policy.spend.balances import balance_name
from policy.spend.effective import SpendPlan
from policy.spend.limits import SpendLimit
from policy.spend.spend_book import (
    Call,
    CountableEvent,
    CountOutcome,
    IncompleteReservationsError,
    SpendAdmission,
    SpendBook,
)
from policy.spend.spend_hash import (
    COMMITTED,
    LIMB,
    UNITS_PER_PICO,
    Reserved,
    amount_of_picos,
    epoch_text,
    picos_of_amount,
    window_name,
)
from proxy.edges.redis.spend.scripts import (
    Arguments,
    call_arguments,
    given_back_arguments,
    given_up_arguments,
    reservation_arguments,
)
from runtime.redis.script import Argument
from tests.contracts.redis.counters_world import CLOCK_KEY, START_MS
from tests.contracts.redis.spend_world import EPOCH, INCARNATION, hard, limits, plan_of, run_end, run_take
from tests.redis_server import REDIS_BINARIES, private_redis

STEPS = 120
COUNTED = epoch_text(EPOCH, "EUR", with_draws=True, with_keys=True)


@pytest.fixture(scope="module", params=REDIS_BINARIES)
def server(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    with (
        private_redis(binary=request.param) as server,
        redis.Redis(unix_socket_path=str(server.socket_path)) as client,
    ):
        yield client


@pytest.fixture
def client(server: redis.Redis) -> redis.Redis:
    server.flushall()
    server.set(CLOCK_KEY, START_MS)
    return server


class Twins:
    """A hash in Redis and its reference. Every step is made on both, and both are compared after it."""

    def __init__(self, client: redis.Redis, plan: SpendPlan) -> None:
        self.client = client
        self.plan = plan
        self.book = SpendBook()
        self.now_ms = START_MS

    def at(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.client.set(CLOCK_KEY, now_ms)

    def take(self, *calls: Call, plan: SpendPlan | None = None) -> SpendAdmission | None:
        plan = plan or self.plan
        try:
            expected = self.book.admit(plan, calls, INCARNATION, self.now_ms)
        except IncompleteReservationsError:
            with pytest.raises(IncompleteReservationsError):
                run_take(self.client, plan, calls)
            raise
        admission = run_take(self.client, plan, calls)
        assert admission == expected
        self.compare()
        return admission

    def end(self, *ends: tuple[str, int | None, bool]) -> None:
        """Per call: its event's key, its cost or None if it was never dispatched, whether it was given up."""
        encoded: list[Arguments] = []
        for event_key, picos, is_given_up in ends:
            if picos is not None:
                encoded.append(call_arguments(event_key, picos))
                self.book.end(event_key, picos)
            elif is_given_up:
                encoded.append(given_up_arguments(event_key))
                self.book.give_up(event_key)
            else:
                encoded.append(given_back_arguments(event_key))
                self.book.give_back(event_key)
        run_end(self.client, self.plan.key, *encoded)
        self.compare()

    def put(self, *event_keys: str, picos: int = 5) -> None:
        """Put reservations that a worker remembers."""
        reserved = Reserved(picos, INCARNATION, self.plan.groups)
        for event_key in event_keys:
            self.book.put(event_key, reserved)
        run_end(self.client, self.plan.key, *(reservation_arguments(key, reserved) for key in event_keys))
        self.compare()

    def complete(self) -> None:
        self.book.complete(EPOCH, {})
        self.store()

    def build(self) -> None:
        self.book.build(COUNTED, self.now_ms, self.book.spent)
        self.store()

    def count(self, *events: CountableEvent, through_ms: int) -> None:
        after_ms = self.book.counted_ms
        tree = SpendTree("root", "ws", Enforcement.CASCADING, "EUR")
        spent = [
            SpentEvent(one.timestamp_ms, one.event_key, one.groups, one.units, one.balance, one.draw) for one in events
        ]
        arguments = count_arguments(COUNTED, TreeCount(tree, after_ms, through_ms, spent))
        assert self.run("count", *arguments) in (1, 2)
        assert self.book.count(after_ms, through_ms, COUNTED, events) is CountOutcome.COUNTED
        self.compare()

    def withdraw(self, event_key: str, picos: int) -> bool:
        """Withdraw from the plan's balance. Raises `IncompleteReservationsError`."""
        assert self.plan.balance is not None
        group, deposited = self.plan.balance.group_id, self.plan.balance.balance.deposited
        withdrawal = Withdrawal(
            tree_key=self.plan.key,
            currency="EUR",
            group_id=group,
            deposited=deposited,
            amount=amount_of_picos(picos),
            key=event_key,
        )
        reply = self.run("withdraw", *withdraw_arguments(EPOCH, withdrawal))
        name = balance_name(group)
        try:
            expected = self.book.withdraw(
                name, picos_of_amount(deposited), event_key, Reserved(picos, COMMITTED, (name,))
            )
        except IncompleteReservationsError:
            assert reply == -1
            raise
        assert reply == int(expected)
        self.compare()
        return expected

    def run(self, name: str, *arguments: Argument) -> int:
        """Run a script of control."""
        reply = self.client.eval(script(name)._text, 1, self.plan.key, *arguments)
        assert isinstance(reply, int)
        return reply

    def store(self) -> None:
        """Store the reference in Redis, as if control had built it."""
        self.client.delete(self.plan.key)
        for name, value in self.book.fields().items():
            self.client.hset(self.plan.key, name, value)

    def compare(self) -> None:
        assert self.client.hgetall(self.plan.key) == self.book.fields()


class RandomSteps:
    """Random steps of a tree's life."""

    def __init__(self, twins: Twins, source: random.Random) -> None:
        self.twins = twins
        self.random = source
        self.keys: list[str] = []
        self.counted = 0

    def run(self) -> None:
        steps: tuple[Callable[[], None], ...] = (
            *(self._take, self._take, self._take, self._end, self._end),
            *(self._put, self._count, self._clock, self._withdraw),
        )
        for number in range(STEPS):
            if number == 3:
                self.twins.build()
            if number == 8:
                self.twins.complete()
            self.random.choice(steps)()

    def _picos(self) -> int:
        source = self.random
        return source.choice((0, 1, LIMB - 1, LIMB, source.randrange(LIMB), source.randrange(3 * LIMB)))

    def _key(self) -> str:
        """A call's event, seldom one that is known."""
        if self.keys and self.random.random() < 0.05:
            return self.random.choice(self.keys)
        self.keys.append(f"{len(self.keys):026}")
        return self.keys[-1]

    def _take(self) -> None:
        keys = {self._key() for _ in range(self.random.randint(1, 5))}
        with suppress(IncompleteReservationsError):
            self.twins.take(*(self._call(key) for key in sorted(keys)))

    def _call(self, key: str) -> Call:
        if not self.twins.plan.is_hard:
            return Call(key, self._picos())
        least, whole = sorted((self._picos(), self._picos()))
        return Call(key, whole, least)

    def _put(self) -> None:
        self.twins.put(*(self._key() for _ in range(3)), picos=self._picos())

    def _end(self) -> None:
        keys = {self._key(), *(self.random.choice(self.keys) for _ in range(5) if self.keys)}
        self.twins.end(
            *((key, self.random.choice((None, self._picos())), self.random.random() < 0.3) for key in sorted(keys))
        )

    def _count(self) -> None:
        twins = self.twins
        if not twins.book.epoch:
            return
        through_ms = max(twins.book.counted_ms, twins.now_ms) + self.random.randint(0, 1000)
        keys = {self.random.choice(self.keys) for _ in range(3)} if self.keys else set()
        twins.count(*(self._event(key, through_ms) for key in sorted(keys)), through_ms=through_ms)

    def _event(self, key: str, at_ms: int) -> CountableEvent:
        """An event that draws what it costs, or another sum, or costs nothing, as a withdrawal does."""
        plan = self.twins.plan
        if plan.balance is None:
            return CountableEvent(key, at_ms, self._units(), plan.groups)
        *groups, name = plan.groups
        counting = self.random.choice((tuple(groups), ()))
        units = self._units() if counting else 0
        draw = self.random.choice((units, self._units(), 0))
        return CountableEvent(key, at_ms, units, counting, balance=name if draw else "", draw=draw)

    def _units(self) -> int:
        return self._picos() * UNITS_PER_PICO + self.random.choice((0, 1))

    def _withdraw(self) -> None:
        if self.twins.plan.balance is not None:
            with suppress(IncompleteReservationsError):
                self.twins.withdraw(self._key(), self._picos())

    def _clock(self) -> None:
        jump = self.random.choice((1000, DAY_MS // 2, DAY_MS, 20 * DAY_MS, -DAY_MS // 2, -2 * DAY_MS))
        self.twins.at(self.twins.now_ms + jump)


@pytest.mark.parametrize("seed", range(80))
def test_scripts_and_reference_agree(client: redis.Redis, seed: int) -> None:
    source = random.Random(seed)

    def some() -> str:
        return source.choice(("", "3", "8.5", "40.000000000001"))

    def of(day: str) -> tuple[SpendLimit, ...]:
        kinds = (limits, hard) if seed % 2 else (limits,)
        return source.choice(kinds)(day=day) + source.choice(kinds)(month=some())

    levels = [(name, of(some())) for name in ("leaf", "team", "root")[: source.randint(1, 3)]]
    levels[-1] = (levels[-1][0], of("5"))
    mode = source.choice((Enforcement.CASCADING, Enforcement.INDEPENDENT))
    owners = [name for name, _ in levels if source.random() < 0.5]
    deposits = {name: source.choice(("0", "3", "8.5", "40.000000000001")) for name in owners} if seed >= 40 else {}
    key = of(some()) if seed % 4 > 1 else ()
    RandomSteps(Twins(client, plan_of(*levels, mode=mode, deposits=deposits, key=key)), source).run()


def test_nothing_is_reserved_while_nobody_counts(client: redis.Redis) -> None:
    twins = Twins(client, plan_of(("root", limits(day="1"))))
    assert twins.take(Call("a", LIMB)) is None
    assert not client.exists(twins.plan.key)


def test_calls_are_admitted_until_the_amount_is_reached(client: redis.Redis) -> None:
    twins = Twins(client, plan_of(("root", limits(day="1"))))
    twins.build()
    assert twins.take(Call("a", LIMB - 1), Call("b", 5), Call("c", 1)) == SpendAdmission(2, 1, 0)
    twins.end(("a", 1, False))
    assert twins.take(Call("c", 1)) == SpendAdmission(1)


def test_spent_windows_tell_when_they_end(client: redis.Redis) -> None:
    twins = Twins(client, plan_of(("team", limits(day="1")), ("root", limits(month="2"))))
    twins.build()
    spent = CountableEvent("x", START_MS + 1, 2 * LIMB * UNITS_PER_PICO, ("team", "root"))
    twins.count(spent, through_ms=START_MS + 1)
    admission = twins.take(Call("a", 1))
    assert admission is not None
    assert (admission.admitted, admission.refused_by) == (0, 1)
    assert admission.wait_ms > 20 * DAY_MS
    twins.at(START_MS + DAY_MS // 2)
    admission = twins.take(Call("a", 1))
    assert admission is not None
    assert admission.refused_by == 2


def test_a_clock_that_steps_back_does_not_reopen_a_window(client: redis.Redis) -> None:
    twins = Twins(client, plan_of(("root", limits(day="1"))))
    twins.build()
    twins.count(CountableEvent("y", START_MS + 5, LIMB * UNITS_PER_PICO, ("root",)), through_ms=START_MS + 5)
    twins.at(START_MS - DAY_MS)
    assert twins.take(Call("a", 1)) == SpendAdmission(0, 1, DAY_MS // 2 + DAY_MS)


def test_a_take_that_was_given_up_reserves_nothing(client: redis.Redis) -> None:
    twins = Twins(client, plan_of(("root", limits(day="1"))))
    twins.build()
    twins.end(("a", None, True))
    assert twins.take(Call("a", LIMB), Call("b", 1)) == SpendAdmission(2)
    assert twins.book.reserved == {"root": 1}
    assert client.ttl(twins.plan.key) > 0


def test_a_hash_that_control_has_left_alone_is_kept_for_its_calls(client: redis.Redis) -> None:
    twins = Twins(client, plan_of(("root", limits(day="1"))))
    twins.build()
    twins.take(Call("a", 1))
    assert client.ttl(twins.plan.key) == -1
    twins.at(START_MS + 3_600_001)
    twins.take(Call("b", 1))
    assert client.ttl(twins.plan.key) > 31 * 86_400


def hard_twins(client: redis.Redis, *levels: tuple[str, tuple[SpendLimit, ...]]) -> Twins:
    twins = Twins(client, plan_of(*(levels or [("root", hard(day="1"))])))
    twins.build()
    twins.complete()
    return twins


def test_a_hard_limit_grants_the_room_that_is_left(client: redis.Redis) -> None:
    twins = hard_twins(client)
    calls = Call("a", LIMB - 10, 3), Call("b", 25, 3), Call("c", 3, 1)
    assert twins.take(*calls) == SpendAdmission(2, 1, 0, (LIMB - 10, 10))
    assert twins.take(Call("d", 0, 0)) == SpendAdmission(1, grants=(0,)), "it costs nothing"
    twins.end(("b", 6, False))
    assert twins.take(Call("e", 5, 5)) == SpendAdmission(0, 1, 0)
    assert twins.take(Call("e", 9, 4)) == SpendAdmission(1, grants=(4,))


def test_the_tightest_hard_limit_grants(client: redis.Redis) -> None:
    twins = hard_twins(client, ("team", limits(day="0.000000000005")), ("root", hard(day="1", month="0.7")))
    assert twins.take(Call("a", LIMB, 9), Call("b", 9, 0)) == SpendAdmission(1, 1, 0, (7 * LIMB // 10,))


def test_a_hard_limit_is_spent_where_the_least_has_no_room(client: redis.Redis) -> None:
    twins = hard_twins(client)
    spent = CountableEvent("x", START_MS + 1, (LIMB - 5) * UNITS_PER_PICO - 1, ("root",))
    twins.count(spent, through_ms=START_MS + 1)
    assert twins.take(Call("a", 6, 6)) == SpendAdmission(0, 1, DAY_MS // 2)
    assert twins.take(Call("a", 6, 5)) == SpendAdmission(1, grants=(5,)), "a begun pico counts as a whole one"


def test_a_hard_limit_admits_nothing_until_reservations_are_complete(client: redis.Redis) -> None:
    twins = Twins(client, plan_of(("root", hard(day="1"))))
    assert twins.take(Call("a", 1, 1)) is None
    twins.build()
    with pytest.raises(IncompleteReservationsError):
        twins.take(Call("a", 1, 1))
    twins.book.complete("another", {})
    twins.store()
    with pytest.raises(IncompleteReservationsError):
        twins.take(Call("a", 1, 1))
    twins.complete()
    assert twins.take(Call("a", 1, 1)) == SpendAdmission(1, grants=(1,))


def test_a_key_s_own_limit_is_tried_first_and_counts_its_calls_alone(client: redis.Redis) -> None:
    root = ("root", limits(day="3"))
    twins = Twins(client, plan_of(root, key=limits(day="1")))
    others = plan_of(root)
    twins.build()
    assert twins.take(Call("a", LIMB), Call("b", 1)) == SpendAdmission(1, 1, 0)
    assert twins.take(Call("c", LIMB), plan=others) == SpendAdmission(1)
    assert twins.book.reserved == {"key_tg_abcdefghijkl": LIMB, "root": 2 * LIMB}
    twins.count(CountableEvent("a", START_MS + 1, LIMB * UNITS_PER_PICO, twins.plan.groups), through_ms=START_MS + 1)
    assert twins.take(Call("b", 1)) == SpendAdmission(0, 1, DAY_MS // 2)
    assert twins.take(Call("d", LIMB), Call("e", 1), plan=others) == SpendAdmission(1, 1, 0)


def test_a_hard_limit_of_a_key_admits_nothing_until_keys_are_counted(client: redis.Redis) -> None:
    twins = Twins(client, plan_of(("root", ()), key=hard(day="1")))
    twins.book.build(epoch_text(EPOCH, "EUR", with_draws=True), START_MS, {})
    twins.complete()
    with pytest.raises(IncompleteReservationsError):
        twins.take(Call("a", 1, 1))
    assert twins.take(Call("a", 1, 1), plan=plan_of(("root", hard(day="1")))) == SpendAdmission(1, grants=(1,))
    twins.book.build(COUNTED, START_MS, {})
    twins.store()
    assert twins.take(Call("b", 5, 5), Call("c", LIMB, 1)) == SpendAdmission(2, grants=(5, LIMB - 5))


def test_a_soft_limit_of_a_key_binds_what_is_reserved_before_keys_are_counted(client: redis.Redis) -> None:
    twins = Twins(client, plan_of(("root", ()), key=limits(day="1")))
    twins.book.build(epoch_text(EPOCH, "EUR"), START_MS, {})
    twins.store()
    assert twins.take(Call("a", LIMB), Call("b", 1)) == SpendAdmission(1, 1, 0)


def test_a_new_window_has_no_more_room_than_the_one_that_is_still_counted(client: redis.Redis) -> None:
    twins = hard_twins(client)
    twins.count(CountableEvent("x", START_MS + 1, LIMB * UNITS_PER_PICO, ("root",)), through_ms=START_MS + 1)
    twins.at(START_MS + DAY_MS // 2)
    assert twins.take(Call("a", 1, 1)) == SpendAdmission(0, 1, 0), "a guess: it ends when control counts"
    twins.count(through_ms=START_MS + DAY_MS // 2)
    assert twins.take(Call("a", 1, 1)) == SpendAdmission(1, grants=(1,))


def test_a_month_that_ends_grants_nothing_twice(client: redis.Redis) -> None:
    twins = hard_twins(client, ("root", hard(month="1")))
    twins.take(Call("a", LIMB - 1, 1))
    first_ms = START_MS - START_MS % DAY_MS
    while window_name(Unit.MONTH, first_ms) == window_name(Unit.MONTH, START_MS):
        first_ms += DAY_MS
    twins.at(first_ms)
    assert twins.take(Call("b", 5, 2)) == SpendAdmission(0, 1, 0), "what is reserved counts in the new month, too"
    late = CountableEvent("a", first_ms - 1, (LIMB - 1) * UNITS_PER_PICO, ("root",))
    twins.count(late, through_ms=first_ms - 1)
    assert twins.take(Call("b", 5, 2)) == SpendAdmission(0, 1, 0), "more events of the old month may come"
    twins.count(through_ms=first_ms)
    assert twins.take(Call("b", LIMB, 2)) == SpendAdmission(1, grants=(LIMB,))


def test_a_reservation_is_put_once_and_not_where_it_was_given_up(client: redis.Redis) -> None:
    twins = hard_twins(client)
    twins.end(("up", None, True))
    twins.put("a", "up", "a", picos=7)
    twins.put("a")
    assert twins.book.reserved == {"root": 7}
    twins.end(("a", 3, False))
    twins.put("a")
    assert twins.book.reserved == {"root": 3}
    assert client.ttl(twins.plan.key) > 0


def balance_twins(client: redis.Redis, *own: SpendLimit, mode: Enforcement = Enforcement.CASCADING) -> Twins:
    """A team with these limits, below a root that has paid in 1 EUR."""
    twins = Twins(client, plan_of(("team", own), ("root", ()), mode=mode, deposits={"root": "1"}))
    twins.build()
    twins.complete()
    return twins


@pytest.mark.parametrize("mode", Enforcement)
def test_calls_draw_a_balance_down_to_nothing(client: redis.Redis, mode: Enforcement) -> None:
    twins = balance_twins(client, mode=mode)
    assert twins.take(Call("a", LIMB - 10, 3), Call("b", 25, 3), Call("c", 1, 1)) == SpendAdmission(
        2, 1, 0, (LIMB - 10, 10)
    )
    assert twins.book.reserved["root*"] == LIMB
    assert ("root" in twins.book.reserved) == (mode is Enforcement.CASCADING)
    twins.end(("b", 6, False))
    event = CountableEvent("a", START_MS + 1, 5, ("team",), balance="root*", draw=(LIMB - 6) * UNITS_PER_PICO)
    twins.count(event, through_ms=START_MS + 1)
    assert twins.take(Call("c", 1, 1)) == SpendAdmission(0, 1, 0), "the rest is reserved"
    twins.end(("b", 5, False))
    assert twins.take(Call("c", 9, 1)) == SpendAdmission(1, grants=(1,))


def test_what_is_drawn_never_comes_back(client: redis.Redis) -> None:
    twins = balance_twins(client)
    drawn = (LIMB - 1) * UNITS_PER_PICO + 1
    twins.count(CountableEvent("a", START_MS + 1, 0, (), balance="root*", draw=drawn), through_ms=START_MS + 1)
    for now_ms in (START_MS, START_MS + DAY_MS, START_MS + 40 * DAY_MS, START_MS - 40 * DAY_MS):
        twins.at(now_ms)
        assert twins.take(Call("b", 1, 1)) == SpendAdmission(0, 1, 1), "a begun pico is drawn"
    topped_up = plan_of(("team", ()), ("root", ()), deposits={"root": "2"})
    assert twins.take(Call("b", LIMB, 1), plan=topped_up) == SpendAdmission(1, grants=(LIMB,))


def test_limits_refuse_before_the_balance(client: redis.Redis) -> None:
    soft = limits(day="0.5")
    twins = balance_twins(client, *soft)
    full = CountableEvent("a", START_MS + 1, LIMB * UNITS_PER_PICO, ("team", "root"))
    twins.count(full._replace(balance="root*", draw=full.units), through_ms=START_MS + 1)
    assert twins.take(Call("b", 1, 1)) == SpendAdmission(0, 1, DAY_MS // 2), "of the limit's window alone"
    twins.at(START_MS + DAY_MS // 2)
    assert twins.take(Call("b", 1, 1)) == SpendAdmission(0, 2, 1)


def test_what_is_left_of_a_balance_caps_a_call_below_a_larger_limit(client: redis.Redis) -> None:
    twins = balance_twins(client, *hard(day="7"))
    assert twins.take(Call("a", 5 * LIMB, 3)) == SpendAdmission(1, grants=(LIMB,))
    assert twins.take(Call("b", 1, 1)) == SpendAdmission(0, 2, 0)


def test_a_balance_admits_nothing_until_reservations_are_complete(client: redis.Redis) -> None:
    twins = balance_twins(client)
    twins.book.complete("another", {})
    twins.store()
    with pytest.raises(IncompleteReservationsError):
        twins.take(Call("a", 1, 1))
    with pytest.raises(IncompleteReservationsError):
        twins.withdraw("w", 1)
    client.delete(twins.plan.key)
    twins.book = SpendBook()
    with pytest.raises(IncompleteReservationsError):
        twins.withdraw("w", 1)


def test_a_withdrawal_leaves_calls_the_rest(client: redis.Redis) -> None:
    twins = balance_twins(client)
    twins.take(Call("a", 9, 9))
    assert not twins.withdraw("w", LIMB - 8)
    assert twins.withdraw("w", LIMB - 10)
    assert twins.withdraw("w", LIMB - 10), "the same again"
    assert not twins.withdraw("x", 2)
    assert twins.take(Call("b", 5, 1)) == SpendAdmission(1, grants=(1,))
    withdrawn = CountableEvent("w", START_MS + 1, 0, (), balance="root*", draw=(LIMB - 10) * UNITS_PER_PICO)
    twins.count(withdrawn, through_ms=START_MS + 1)
    twins.end(("b", None, False))
    assert twins.book.reserved == {"team": 9, "root": 9, "root*": 9}
    assert twins.withdraw("x", 1)


def test_a_begun_pico_cannot_be_withdrawn(client: redis.Redis) -> None:
    twins = balance_twins(client)
    twins.count(CountableEvent("a", START_MS + 1, 0, (), balance="root*", draw=1), through_ms=START_MS + 1)
    assert not twins.withdraw("w", LIMB)
    assert twins.withdraw("w", LIMB - 1)


def test_a_balance_of_the_calling_group_is_drawn_before_its_parents(client: redis.Redis) -> None:
    twins = Twins(client, plan_of(("team", ()), ("root", ()), deposits={"team": "0", "root": "9"}))
    twins.build()
    twins.complete()
    assert twins.take(Call("a", 1, 1)) == SpendAdmission(0, 1, 1), "nothing was paid in there"


def test_a_balance_admits_nothing_where_draws_are_not_counted(client: redis.Redis) -> None:
    """A control of before balances has built the hash."""
    twins = balance_twins(client)
    client.hset(twins.plan.key, "e", epoch_text(EPOCH, "EUR"))
    with pytest.raises(IncompleteReservationsError):
        run_take(client, twins.plan, [Call("a", 1, 1)])
    one = Withdrawal(
        tree_key=twins.plan.key,
        currency="EUR",
        group_id="root",
        deposited=Decimal(1),
        amount=Decimal("0.1"),
        key="w",
    )
    assert twins.run("withdraw", *withdraw_arguments(EPOCH, one)) == -1
    limited = plan_of(("root", hard(day="1")))
    assert run_take(client, limited, [Call("a", 1, 1)]) == SpendAdmission(1, grants=(1,))
