"""The real scripts, with the test's own clock, compared with the reference and with two brute-force models.

Random trees in both modes, all kinds of limits, batches, settlements, give-backs, duplicates, reorderings, takes that
come late or whose answers are lost, words on calls in flight, changing thresholds, midnight, clocks that step back by
any size, and steps that aim at the edges of windows. The models do not know calls in flight: see
`test_calls_in_flight.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from policy.limits.admission import Decision, Tightest, admit, revoke_takes, settle
from policy.limits.counter_hash import CounterHash, number_of
from policy.limits.counter_layout import (
    calendar_usage,
    closed_field,
    kind_mask,
    places_field,
    rate_usage,
    time_ms,
    windows_field,
)
from policy.limits.effective import Bound, Plan
from policy.limits.groups import Group
from policy.limits.in_flight.places import RETRY_MS, Says, Word, calls_in_flight, hear
from policy.limits.kinds import KIND_NUMBER, KINDS, LimitType, Unit
from policy.limits.settlement import Estimate, Reservation, Settlement, reservations_of
from policy.limits.take_numbers import NO_DEADLINE_MS, TakeStamp
from policy.limits.windows import DAY_MS, day_of, window_ms
from proxy.edges.redis.scripts import Scripts, places_arguments, settle_arguments, take_limits, takes_field
from tests.contracts.redis.brute_force import GRANULE_MS, WINDOW_MS, BruteForce, Moment
from tests.contracts.redis.counters_world import CLOCK_KEY, REDIS_CLOCK, START_MS, group, plan_of
from tests.redis_counters import take_arguments
from tests.redis_server import REDIS_BINARIES, private_redis

LEASE_MS = 130_000
CONCURRENT = {kind for kind in KINDS if kind[0].is_concurrent}
HOUR_MS = 3_600_000
DAYS_TO_NEXT_MONTH = 28
"""Days from `START_MS`, the 4th of October, to the next month."""
THRESHOLDS = st.one_of(st.integers(1, 6), st.sampled_from([63, 64, 65, 66]), st.integers(7, 400))
LIMITS = st.dictionaries(st.sampled_from(KINDS), THRESHOLDS, max_size=4).map(
    lambda limits: {(LimitType.REQUEST, Unit.MINUTE): 400, **limits} if CONCURRENT & limits.keys() else limits
)
COUNTS = st.one_of(st.integers(0, 8), st.integers(0, 150))
MARGINS = st.one_of(st.just(0), st.integers(0, 8), st.integers(0, 300))
ESTIMATES = st.builds(
    lambda tokens, margin, output, output_margin: Estimate(tokens, margin, min(tokens, output), output_margin),
    COUNTS,
    MARGINS,
    COUNTS,
    MARGINS,
)
SOME = Estimate(3, 5, 2, 4)
NAMES = ("root", "child", "leaf", "twig", "bud")


@dataclass(frozen=True)
class Admission:
    """An admitted call: its reservations, the limits that each one is of, and when it was."""

    parts: tuple[tuple[Reservation, tuple[Bound, ...]], ...]
    moment: Moment

    @property
    def reservation(self) -> Reservation:
        return self.parts[0][0]


@dataclass(frozen=True)
class Sent:
    """An unanswered take. It may have run, or may still be on its way."""

    plan: Plan
    estimates: tuple[Estimate, ...]
    stamp: TakeStamp
    admissions: tuple[Admission, ...] = ()


class Machine(RuleBasedStateMachine):
    """Drives a real hash, one of the reference and the models through the same steps."""

    client: "redis.Redis"
    scripts: Scripts

    @initialize(
        limits=st.lists(LIMITS, min_size=1, max_size=5),
        cascading=st.booleans(),
        days=st.sampled_from([1, DAYS_TO_NEXT_MONTH]),
        before_midnight=st.sampled_from([DAY_MS // 2, 100_000, 1_500, 30]),
    )
    def plant(self, limits: list[dict[tuple[str, str], int]], cascading: bool, days: int, before_midnight: int) -> None:
        self.client.flushdb()
        self.now_ms = START_MS - START_MS % DAY_MS + days * DAY_MS - before_midnight
        self.passed_ms = 0
        self.cascading = cascading
        self.groups: list[Group] = []
        for name, its in zip(NAMES, limits, strict=False):
            parent = self.groups[-1].id if self.groups else None
            self.groups.append(group(name, its, parent, cascading=cascading))  # type: ignore[arg-type]
        self.keys = {plan.key for plan in map(self._plan, range(len(self.groups)))}
        self.books = {key: CounterHash(LEASE_MS) for key in self.keys}
        self.models = {key: BruteForce(LEASE_MS) for key in self.keys}
        self.open: list[Admission] = []
        self.edges: list[int] = []
        self.numbers = {"a": 0, "b": 0}
        self.settlements: list[tuple[str, str, list[tuple[Admission, Settlement]]]] = []
        self.takes = {"a": 0, "b": 0}
        self.unheard: list[Sent] = []
        self.under_way: list[Sent] = []
        self.revoked: list[Sent] = []

    @rule(step_ms=st.one_of(st.integers(0, 30), st.integers(0, 1_100), st.integers(0, 61_000), st.just(HOUR_MS)))
    def wait(self, step_ms: int) -> None:
        """Wait, or step the clock forward, which is the same to the counters."""
        self._set_clock(self.now_ms + step_ms)

    @rule(step_ms=st.one_of(st.integers(1, 30), st.integers(1, 70_000), st.just(HOUR_MS)))
    def step_back(self, step_ms: int) -> None:
        self.now_ms -= step_ms
        for model in self.models.values():
            model.step_back()

    @rule(data=st.data(), off_by=st.integers(-1, 1))
    @precondition(lambda self: bool(self.edges))
    def wait_for_an_edge(self, data: st.DataObject, off_by: int) -> None:
        ahead = sorted({edge for edge in self.edges if edge > self.now_ms + 1})
        if ahead:
            self._set_clock(data.draw(st.sampled_from(ahead[:8])) + off_by)

    @rule(caller=st.integers(0, 4), estimates=st.lists(ESTIMATES, min_size=1, max_size=6))
    def call(self, caller: int, estimates: list[Estimate]) -> None:
        self._take(self._plan(caller), estimates)

    @rule(caller=st.integers(0, 4), times=st.integers(1, 90), margin=st.integers(0, 4))
    def burst(self, caller: int, times: int, margin: int) -> None:
        self._take(self._plan(caller), [Estimate(1, margin, times % 2, margin)] * times)

    @rule(
        caller=st.integers(0, 4), estimates=st.lists(ESTIMATES, min_size=1, max_size=3), late_ms=st.integers(1, 70_000)
    )
    def call_too_late(self, caller: int, estimates: list[Estimate], late_ms: int) -> None:
        """A take whose deadline is past, by Redis' own clock, moves nothing."""
        plan = self._plan(caller)
        stamp = self._stamp("a")._replace(deadline_ms=self.now_ms - late_ms)
        decision = self._take(plan, estimates, stamp)
        assert decision is None or decision.too_late

    @rule(caller=st.integers(0, 4), estimates=st.lists(ESTIMATES, min_size=1, max_size=6), by=st.sampled_from("ab"))
    def call_and_lose_the_answer(self, caller: int, estimates: list[Estimate], by: str) -> None:
        self._run_unheard(Sent(self._plan(caller), tuple(estimates), self._stamp(by)))

    @rule(caller=st.integers(0, 4), estimates=st.lists(ESTIMATES, min_size=1, max_size=3), by=st.sampled_from("ab"))
    def send_a_take_that_does_not_arrive_yet(self, caller: int, estimates: list[Estimate], by: str) -> None:
        plan = self._plan(caller)
        if plan.bounds:
            deadline_ms = self.now_ms + 30_000 if by == "a" else NO_DEADLINE_MS
            stamp = self._stamp(by)._replace(deadline_ms=deadline_ms)
            self.under_way.append(Sent(plan, tuple(estimates), stamp))

    @rule(data=st.data())
    @precondition(lambda self: bool(self.under_way))
    def a_take_arrives(self, data: st.DataObject) -> None:
        sent_take = data.draw(st.sampled_from(self.under_way))
        self.under_way.remove(sent_take)
        self._run_unheard(sent_take)

    @rule(data=st.data(), by=st.sampled_from("ab"), asks_twice=st.booleans())
    def give_back_what_was_lost(self, data: st.DataObject, by: str, asks_twice: bool) -> None:
        """Reconnect: what ran is found out and given back once, and what did not run never will."""
        lost_takes = [sent_take for sent_take in (*self.unheard, *self.under_way) if sent_take.stamp.incarnation == by]
        if not lost_takes:
            return
        key = data.draw(st.sampled_from(lost_takes)).plan.key
        of_key = [sent_take for sent_take in lost_takes if sent_take.plan.key == key]
        ran = self._revoke(key, by, max(sent_take.stamp.number for sent_take in of_key))
        if asks_twice:
            assert self._revoke(key, by, max(sent_take.stamp.number for sent_take in of_key)) == ran
        for sent_take in of_key:
            at_ms, admitted = ran.get(sent_take.stamp.number, (0, 0))
            assert admitted == len(sent_take.admissions)
            assert all(admission.reservation.admitted_at_ms == at_ms for admission in sent_take.admissions)
            if sent_take.admissions:
                self._settle(by, [(admission, 0, True) for admission in sent_take.admissions])
        self.unheard = [sent_take for sent_take in self.unheard if sent_take not in of_key]
        self.revoked += [sent_take for sent_take in self.under_way if sent_take in of_key]
        self.under_way = [sent_take for sent_take in self.under_way if sent_take not in of_key]

    @rule(data=st.data())
    @precondition(lambda self: bool(self.revoked))
    def a_revoked_take_arrives(self, data: st.DataObject) -> None:
        sent_take = data.draw(st.sampled_from(self.revoked))
        decision = self._take(sent_take.plan, list(sent_take.estimates), sent_take.stamp)
        assert decision is not None
        assert decision.too_late, "it was given back before it ran"

    @rule(caller=st.integers(0, 4))
    def come_back_when_told(self, caller: int) -> None:
        """`retry_after` is tight: refused one millisecond before, admitted at it."""
        plan = self._plan(caller)
        decision = self._take(plan, [SOME])
        if decision is None or decision.refused_by is None or self._later_window_has_counted(plan):
            return
        if self._has_full_places(plan):
            assert decision.retry_after_ms >= RETRY_MS
            return
        self._set_clock(decision.clock_ms + decision.retry_after_ms - 1)
        early = self._take(plan, [SOME])
        assert early is not None
        assert early.refused_by is not None, "admitted before retry_after"
        assert early.retry_after_ms == 1
        self._set_clock(self.now_ms + 1)
        on_time = self._take(plan, [SOME])
        assert on_time is not None
        assert on_time.refused_by is None, "refused at retry_after"

    @rule(caller=st.integers(0, 4))
    def lift_it_early(self, caller: int) -> None:
        """Check that a refusal stands until `hard_retry_after`, whatever is refunded."""
        plan = self._plan(caller)
        decision = self._take(plan, [SOME])
        if decision is None or not decision.hard_retry_after_ms:
            return
        for admission in [admission for admission in self.open if admission.reservation.key == plan.key]:
            self.open.remove(admission)
            self._settle("a", [(admission, 0, True)])
        self._set_clock(decision.clock_ms + decision.hard_retry_after_ms - 1)
        still = self._take(plan, [SOME])
        assert still is not None
        assert still.refused_by is not None, "a hard refusal was lifted"

    @rule(data=st.data(), incarnation=st.sampled_from("ab"), gives_back=st.booleans())
    @precondition(lambda self: bool(self.open))
    def end_calls(self, data: st.DataObject, incarnation: str, gives_back: bool) -> None:
        key = data.draw(st.sampled_from(self.open)).reservation.key
        of_key = [admission for admission in self.open if admission.reservation.key == key]
        ended = data.draw(st.lists(st.sampled_from(of_key), min_size=1, max_size=6, unique_by=id))
        for admission in ended:
            self.open.remove(admission)
        settlements = [(one, 0 if gives_back else data.draw(COUNTS), gives_back) for one in ended]
        self._settle(incarnation, settlements, doubled=data.draw(st.booleans()))

    @rule(data=st.data())
    @precondition(lambda self: bool(self.settlements))
    def send_again(self, data: st.DataObject) -> None:
        """A duplicate, or an old batch that comes late, alone or with its successor."""
        place = data.draw(st.integers(0, len(self.settlements) - 1))
        key, incarnation, batch = self.settlements[place]
        following = self.settlements[place + 1] if place + 1 < len(self.settlements) else None
        if following is not None and following[:2] == (key, incarnation) and data.draw(st.booleans()):
            batch = batch + following[2]
        self._apply(key, incarnation, batch)

    @rule(
        caller=st.integers(0, 4),
        by=st.sampled_from("abc"),
        says=st.sampled_from(Says),
        calls=st.lists(st.integers(0, 9), min_size=5, max_size=5),
        numbers=st.tuples(st.integers(0, 9), st.integers(0, 30)),
    )
    def say_what_is_in_flight(
        self, caller: int, by: str, says: Says, calls: list[int], numbers: tuple[int, int]
    ) -> None:
        """A word, which may be an old one, or say what is not so."""
        plan = self._plan(caller)
        groups = dict(zip(plan.groups, calls, strict=False))
        if groups:
            word = Word(says, *numbers)
            changes = self._run(self.scripts.places.sha, plan.key, places_arguments(by, word, groups))
            assert changes == hear(self.books[plan.key].places, by, word, groups, self.now_ms)

    @rule(which=st.integers(0, 4), limits=LIMITS)
    def patch(self, which: int, limits: dict[tuple[str, str], int]) -> None:
        """Thresholds and units change; counts stay."""
        old = self.groups[which % len(self.groups)]
        new = group(old.id, limits, old.parent_id, cascading=self.cascading)  # type: ignore[arg-type]
        self.groups[which % len(self.groups)] = new

    @invariant()
    def control_reads_what_the_scripts_count(self) -> None:
        """The use of each limit, from the stored fields alone, when no script has dropped what left."""
        plan = self._plan(len(self.groups) - 1)
        for bound in plan.bounds:
            group = bound.counting_group
            kind = bound.limit.type, bound.limit.unit
            number = KIND_NUMBER[kind]
            if bound.limit.type.is_concurrent:
                stored: Any = self.client.hget(plan.key, places_field(group))
                places = self.books[plan.key].places_at(group, self.now_ms)
                assert calls_in_flight(stored, self.now_ms) == places.used("")
                continue
            counts = self.books[plan.key].counts_at(group, self.now_ms)
            values: Any = self.client.hmget(plan.key, [group, windows_field(group, kind), closed_field(group, number)])
            header, windows, closed = values
            if not bound.limit.is_rate:
                assert calendar_usage(kind, header, windows, self.now_ms) == counts.count(kind)
                continue
            now_ms = time_ms(header, self.now_ms)
            log = counts.log(kind)
            counted = log.total, max(0, log.empty_at_ms(window_ms(bound.limit.unit, 0)) - now_ms)
            assert rate_usage(header, closed, number, now_ms) == counted

    def _later_window_has_counted(self, plan: Plan) -> bool:
        """Return whether the clock has stepped back over midnight."""
        today = day_of(self.now_ms)
        counts = self.books[plan.key].groups.values()
        others = [
            (place[0], window) for one in counts for place, windows in one.other_windows.items() for window in windows
        ]
        is_later = [window.number > number_of(kind, today) for kind, window in others]
        return any(one.day > today for one in counts) or any(is_later)

    def _has_full_places(self, plan: Plan) -> bool:
        """Return whether a limit of calls in flight refuses incarnation `a`."""
        places = self.books[plan.key].places_at
        return any(
            places(bound.counting_group, self.now_ms).used("a") >= bound.limit.threshold
            for bound in plan.bounds
            if bound.limit.type.is_concurrent
        )

    def _plan(self, caller: int) -> Plan:
        depth = caller % len(self.groups)
        return plan_of(*reversed(self.groups[: depth + 1]))

    def _set_clock(self, now_ms: int) -> None:
        self.passed_ms += max(0, now_ms - self.now_ms)
        self.now_ms = now_ms

    def _moment(self) -> Moment:
        return Moment(self.now_ms, self.passed_ms)

    def _run(self, script: bytes, key: str, arguments: list[bytes]) -> "int | list[int]":
        pipeline: Any = self.client.pipeline(transaction=False)
        pipeline.set(CLOCK_KEY, self.now_ms)
        pipeline.execute_command("EVALSHA", script, 1, key, *arguments)
        reply: int | list[int] = pipeline.execute()[1]
        return reply

    def _stamp(self, incarnation: str) -> TakeStamp:
        """The next take's. Below the oldest take that is lost all answers are known."""
        self.takes[incarnation] += 1
        number = self.takes[incarnation]
        lost_numbers = [
            sent_take.stamp.number
            for sent_take in (*self.unheard, *self.under_way)
            if sent_take.stamp.incarnation == incarnation
        ]
        return TakeStamp(incarnation, number, min([number, *lost_numbers]) - 1)

    def _run_unheard(self, sent_take: Sent) -> None:
        open_before = len(self.open)
        if self._take(sent_take.plan, list(sent_take.estimates), sent_take.stamp) is not None:
            admissions = tuple(self.open[open_before:])
            del self.open[open_before:]
            self.unheard.append(replace(sent_take, admissions=admissions))

    def _revoke(self, key: str, incarnation: str, through: int) -> dict[int, tuple[int, int]]:
        """Return, by number, when each remembered take ran, and how many it admitted."""
        reply = self._run(self.scripts.revoke.sha, key, [takes_field(incarnation), b"%d" % through])
        assert isinstance(reply, list)
        ran = revoke_takes(self.books[key], incarnation, through)
        assert reply == [figure for record in ran for figure in (record.at_ms, record.number, record.admitted)]
        return {record.number: (record.at_ms, record.admitted) for record in ran}

    def _take(self, plan: Plan, estimates: list[Estimate], stamp: TakeStamp | None = None) -> Decision | None:
        if not plan.bounds:
            return None
        stamp = stamp or self._stamp("a")
        columns = take_limits(plan.limits).columns
        texts = [b"%d" % figure for estimate in estimates for type in columns for figure in estimate.of(type)]
        reply = self._run(self.scripts.take.sha, plan.key, [*take_arguments(plan, LEASE_MS, stamp), *texts])
        decision = admit(self.books[plan.key], plan.bounds, estimates, self.now_ms, stamp)
        assert reply == _as_reply(decision)
        if not decision.too_late:
            self.models[plan.key].resume({bound.counting_group for bound in plan.bounds}, self._moment())
        self._check_between_the_models(plan, estimates, decision)
        return decision

    def _check_between_the_models(self, plan: Plan, estimates: list[Estimate], decision: Decision) -> None:
        model = self.models[plan.key]
        now = self._moment()
        bounds = tuple(bound for bound in plan.bounds if not bound.limit.type.is_concurrent)
        for estimate in estimates[: decision.admitted]:
            for bound in bounds:
                least = model.least(bound, now)
                threshold = bound.limit.threshold
                assert least < threshold, f"one too many: {bound}"
                assert least + model.least_margin(bound, now) < 2 * threshold, f"one may cost too much: {bound}"
            model.admitted(bounds, estimate, decision.now_ms, now)
            reservations = reservations_of(plan.key, _buckets(plan.bounds), decision.now_ms, estimate)
            parts = tuple((one, _bounds_of(one, bounds)) for one in reservations)
            self.open.append(Admission(parts, now))
        if decision.refused_by is not None and not plan.bounds[decision.refused_by].limit.type.is_concurrent:
            refusing = plan.bounds[decision.refused_by]
            most = model.most(refusing, now)
            threshold = refusing.limit.threshold
            most_in_all = most + model.most_margin(refusing, now)
            assert most >= threshold or most_in_all >= 2 * threshold, f"refused for nothing: {refusing}"
            for earlier in (one for one in plan.bounds[: decision.refused_by] if one in bounds):
                assert model.least(earlier, now) < earlier.limit.threshold, f"not the first to refuse: {refusing}"
        if decision.admitted:
            self._remember_edges(plan, decision.clock_ms)

    def _remember_edges(self, plan: Plan, now_ms: int) -> None:
        """Instants at which something may leave: steps aim at them."""
        for bound in plan.bounds:
            window = WINDOW_MS.get(bound.limit.unit, LEASE_MS)
            granule = GRANULE_MS[bound.limit.unit]
            self.edges += [now_ms + window, now_ms - now_ms % granule + granule, now_ms + window + granule]
        self.edges = [*self.edges[-40:], now_ms - now_ms % DAY_MS + DAY_MS]

    def _settle(self, incarnation: str, ended: list[tuple[Admission, int, bool]], *, doubled: bool = False) -> None:
        """`doubled`: the new numbers stand in their batch twice, as when a replay finds a record twice."""
        batch = []
        for admission, actual, given_back in ended:
            for reservation, _ in admission.parts:
                self.numbers[incarnation] += 1
                one = (
                    admission,
                    Settlement(
                        reservation=reservation,
                        number=self.numbers[incarnation],
                        actual_tokens=actual,
                        given_back=given_back,
                    ),
                )
                batch += [one, one] if doubled else [one]
        key = ended[0][0].reservation.key
        self.settlements.append((key, incarnation, batch))
        self._apply(key, incarnation, batch)

    def _apply(self, key: str, incarnation: str, batch: list[tuple[Admission, Settlement]]) -> None:
        settlements = [settlement for _, settlement in batch]
        reply = self._run(self.scripts.settle.sha, key, settle_arguments(settlements, incarnation, LEASE_MS))
        assert reply == settle(self.books[key], incarnation, settlements, self.now_ms)
        model = self.models[key]
        now = self._moment()
        if reply:
            model.resume({name for one in settlements for name, _ in one.reservation.buckets}, now)
        for admission, settlement in batch:
            bounds = dict(admission.parts)[settlement.reservation]
            model.settled(bounds, incarnation, settlement, admission.moment, now)


def _bounds_of(reservation: Reservation, bounds: tuple[Bound, ...]) -> tuple[Bound, ...]:
    types = {reservation.type} | ({LimitType.REQUEST} if reservation.type is LimitType.TOKEN else set())
    return tuple(bound for bound in bounds if bound.limit.type in types)


def _buckets(bounds: tuple[Bound, ...]) -> tuple[tuple[str, int], ...]:
    groups = dict.fromkeys(bound.counting_group for bound in bounds)
    return tuple((name, kind_mask(b.limit for b in bounds if b.counting_group == name)) for name in groups)


def _as_reply(decision: Decision) -> list[int]:
    def place(tightest: Tightest | None) -> list[int]:
        return [0, 0, 0] if tightest is None else [tightest.bound + 1, tightest.remaining, tightest.reset_ms]

    refused_by = 0 if decision.refused_by is None else decision.refused_by + 1
    waits = [decision.retry_after_ms, decision.counted_retry_after_ms, decision.hard_retry_after_ms]
    counts = [decision.clock_ms, decision.admitted, refused_by, *waits]
    return [*counts, *place(decision.requests), *place(decision.tokens), decision.now_ms]


@pytest.fixture(params=REDIS_BINARIES)
def machine(request: pytest.FixtureRequest) -> Iterator[type[Machine]]:
    scripts = Scripts.load(REDIS_CLOCK)
    with private_redis(binary=request.param) as server, redis.Redis(unix_socket_path=str(server.socket_path)) as own:
        for script in (scripts.take, scripts.settle, scripts.revoke, scripts.places):
            own.script_load(script.text.decode())
        yield type("BoundMachine", (Machine,), {"client": own, "scripts": scripts})


def explore(machine: type[Machine], examples: int, steps: int) -> None:
    thorough = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_state_machine_as_test(machine, settings=thorough)


def test_scripts_stay_between_the_models(machine: type[Machine]) -> None:
    explore(machine, examples=60, steps=40)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_scripts_stay_between_the_models_in_long_runs(machine: type[Machine]) -> None:
    explore(machine, examples=5_000, steps=60)
