"""A machine of hypothesis: workers of two machines, with calls in flight of a tree of groups.

At most `threshold` calls of a group are in flight, but for these, which Redis may not count (docs/reference/limits.md):

- calls of a worker of which Redis has heard nothing in 60 s, neither from it nor from its supervisor;
- calls that were in flight when Redis lost data, until their worker's next word, within 4 s of its network being whole;
- calls that were admitted before the limit was set, and those above a threshold that was lowered.

A call is refused only by the first full group of its path, where so many calls are in flight, or may be for all that
Redis can know: their worker is cut off, or died with its supervisor and was not silent for long enough, or a fail-over
brought back what was ended before.
"""

import asyncio
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policy.limits.effective import Plan
from policy.limits.in_flight.places import RENEWAL_S
from policy.limits.kinds import LimitType, Unit
from proxy.accounting.reservations import LimitHit, Taken
from proxy.errors import CountersUnavailableError
from tests.contracts.redis.counters_world import RPM, Limits, group, plan_of
from tests.contracts.redis.places_network import Link, LinkedLoop
from tests.contracts.redis.places_world import (
    JUMP_S,
    RECONNECT_S,
    SILENT_S,
    TOLD_S,
    Bucket,
    Call,
    Ghost,
    Worker,
    World,
)
from tests.redis_server import RedisServer

PATHS = {"root": ("root",), "left": ("left", "root"), "right": ("right", "root"), "leaf": ("leaf", "left", "root")}
"""Each group of the tree with its ancestors."""
CALLERS = st.sampled_from(sorted(PATHS))
THRESHOLDS = st.one_of(st.none(), st.integers(0, 4), st.integers(1, 4))
UNITS = st.sampled_from([Unit.SECOND, Unit.MINUTE])
WAITS_S = st.sampled_from([0.01, 0.06, 0.3, 1.2, 2.5, 4.1, 8.2, 16.0, 61.0])
STEPS_S = st.sampled_from([0.5, 7.0, 45.0, 58.0, 61.0, 130.0, 4_000.0, 100_000.0])
Item = TypeVar("Item")
NUMBERS = st.integers(0, 10_000)
"""Choose among what there is at the time."""


class PlacesMachine(RuleBasedStateMachine):
    """`loop` and `redis_server` are set by a subclass."""

    loop: LinkedLoop
    redis_server: RedisServer
    world: World

    @initialize(
        cascading=st.booleans(),
        repeats_refusals=st.booleans(),
        thresholds=st.fixed_dictionaries(dict.fromkeys(PATHS, THRESHOLDS)),
        requests=st.sampled_from([1_000_000, 1_000_000, 8]),
    )
    def plant(self, cascading: bool, repeats_refusals: bool, thresholds: dict[str, int | None], requests: int) -> None:
        self.world = World(self.loop, self.redis_server, repeats_refusals=repeats_refusals)
        self.cascading = cascading
        self.limits: dict[str, Limits] = {}
        for name, threshold in thresholds.items():
            self._set_limit(name, threshold, Unit.SECOND)
        self.requests = requests
        self.plans: dict[str, Plan] = {}
        self.replica: dict[bytes, bytes] | None = None
        for _ in range(2):
            self.loop.now(self.world.add_machine(2))

    # --- calls ---

    @rule(caller=CALLERS, which=NUMBERS, number=st.integers(1, 5))
    def begin(self, caller: str, which: int, number: int) -> None:
        self._begin({_one(self.world.workers, which): number}, self._plan(caller))

    @rule(caller=CALLERS, number=st.integers(1, 3))
    def begin_everywhere(self, caller: str, number: int) -> None:
        self._begin(dict.fromkeys(self.world.workers, number), self._plan(caller))

    @rule(which=NUMBERS, number=st.integers(1, 4), was_sent=st.booleans())
    def end(self, which: int, number: int, was_sent: bool) -> None:
        busy = [worker for worker in self.world.workers if worker.calls]
        if busy:
            worker = _one(busy, which)
            self._end([(worker, call) for call in worker.calls[:number]], was_sent=was_sent)

    @rule()
    def end_all(self) -> None:
        self._end([(worker, call) for worker in self.world.workers for call in worker.calls])

    @rule(caller=CALLERS, threshold=THRESHOLDS, unit=UNITS)
    def change_limit(self, caller: str, threshold: int | None, unit: Unit) -> None:
        self._set_limit(caller, threshold, unit)
        self.plans.clear()

    # --- time ---

    @rule(seconds=WAITS_S)
    def wait(self, seconds: float) -> None:
        self._wait(seconds)

    @rule(seconds=STEPS_S, forward=st.booleans())
    def step_clock(self, seconds: float, forward: bool) -> None:
        self.world.step_clock(seconds if forward else -seconds)

    # --- processes ---

    @rule(which=NUMBERS, arrives=st.booleans())
    def kill_worker(self, which: int, arrives: bool) -> None:
        worker = _one(self.world.workers, which)
        self.loop.now(self.world.kill(worker, arrives=arrives))
        self.loop.now(self.world.add_worker(worker.machine))

    @rule(which=NUMBERS, arrives=st.booleans())
    def kill_machine(self, which: int, arrives: bool) -> None:
        self.loop.now(self.world.kill_machine(_one(self.world.machines, which), arrives=arrives))
        self.loop.now(self.world.add_machine(2))

    @rule(which=NUMBERS)
    def retire_worker(self, which: int) -> None:
        worker = _one(self.world.workers, which)
        self.loop.now(self.world.retire(worker))
        self.loop.now(self.world.add_worker(worker.machine))

    # --- the network ---

    @rule(which=NUMBERS)
    def hold_requests(self, which: int) -> None:
        """Commands arrive later, as at a Redis that is stopped."""
        self._link(which).holds_requests = True

    @rule(which=NUMBERS)
    def hold_replies(self, which: int) -> None:
        """Commands run, and their answers are late."""
        self._link(which).holds_replies = True

    @rule(which=NUMBERS, arrives=st.booleans())
    def cut(self, which: int, arrives: bool) -> None:
        """`arrives`: what was sent before runs when the network is whole again; else it is lost."""
        self._link(which).cut(arrives=arrives)
        self.loop.now(lambda: None)

    @rule(which=NUMBERS, late_s=st.sampled_from([0.0, 0.0, 1.0]))
    def heal(self, which: int, late_s: float) -> None:
        """`late_s`: what a lost connection carried arrives so much later."""
        troubled = [link for link in self._links() if not link.is_healthy]
        if troubled:
            self._heal([_one(troubled, which)], late_s)

    @rule()
    def cut_off_everyone(self) -> None:
        for link in self._links():
            link.cut(arrives=True)
        self.loop.now(lambda: None)

    @rule(late_s=st.sampled_from([0.0, 1.0]))
    def heal_all(self, late_s: float) -> None:
        self._heal([link for link in self._links() if not link.is_healthy], late_s)

    # --- Redis ---

    @rule(scripts_too=st.booleans())
    def empty_redis(self, scripts_too: bool) -> None:
        self.world.lose_data()
        if scripts_too:
            self.world.server.ask("SCRIPT", "FLUSH")

    @rule()
    def lose_scripts(self) -> None:
        self.world.server.ask("SCRIPT", "FLUSH")

    @rule()
    def replicate(self) -> None:
        self.replica = self.world.copy()

    @rule()
    @precondition(lambda self: self.replica is not None)
    def fail_over(self) -> None:
        """Lose what was written since `replicate`."""
        assert self.replica is not None
        for link in self._links():
            link.cut(arrives=False)
        self.loop.now(lambda: None)
        self.world.fail_over_to(self.replica)
        self.world.server.ask("SCRIPT", "FLUSH")
        self._heal(self._links(), 0.0)

    @invariant()
    def nothing_grows(self) -> None:
        """A hash expires, and an incarnation's takes are joined."""
        if not hasattr(self, "world"):
            return
        for key in self.world.server.ask("KEYS", "tg:*"):
            assert self.world.server.ask("TTL", key) > 0
            for places in self.world.places(key).values():
                for entry in places.entries.values():
                    assert len(entry.takes) < 50

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self._come_to_rest()
        finally:
            if hasattr(self, "world"):
                self.loop.now(self.world.close())
                self.loop.links.clear()

    def _come_to_rest(self) -> None:
        """All calls end, all networks are whole: every place is back, and nothing stays in Redis."""
        self._heal(self._links(), 0.0)
        self.end_all()
        self.requests = 1_000_000
        self.plans.clear()
        self._wait(max(TOLD_S, RENEWAL_S + RECONNECT_S) + 0.1)
        if any(self.world.possible(ghost.bucket) for ghost in list(self.world.ghosts)):
            for seconds in (SILENT_S, SILENT_S - JUMP_S + 0.1, RENEWAL_S + 0.1):
                for caller in PATHS:
                    for worker in self.world.workers:
                        self._begin({worker: 1}, self._plan(caller))
                self.end_all()
                self._wait(seconds)
        for number, caller in enumerate(PATHS):
            plan = self._plan(caller)
            thresholds = [bound.limit.threshold for bound in plan.bounds if bound.limit.type.is_concurrent]
            if thresholds:
                worker = _one(self.world.workers, number)
                self._begin({worker: min(thresholds) + 2}, plan)
                assert len(worker.calls) == min(thresholds), f"{caller}, idle, has {len(worker.calls)} places"
                self.end_all()
                self._wait(0.2)
        self._wait(3 * RENEWAL_S)
        alive = {worker.name for worker in self.world.workers}
        for key in self.world.server.ask("KEYS", "tg:*"):
            for bucket, places in self.world.places(key).items():
                leftover = alive & places.entries.keys() - self.world.restored
                assert not leftover, f"{leftover} still have an entry in {bucket}: {places}"
        assert not any(self.world.announced.get(name) for name in alive)

    # --- helpers ---

    def _begin(self, numbers: dict[Worker, int], plan: Plan) -> None:
        world = self.world
        buckets = _limited_buckets(plan)
        before = {bucket: world.certain(bucket) for bucket in buckets}
        answers = self.loop.now(world.begin(numbers, plan))
        counted = 0
        for worker, its_answers in answers.items():
            for answer in its_answers:
                if isinstance(answer, Taken):
                    counted += 1
                    worker.calls.append((answer, tuple(buckets)))
                elif isinstance(answer, CountersUnavailableError):
                    world.ghosts += [Ghost(worker, bucket, 1, world.now_s) for bucket in buckets]
                else:
                    assert isinstance(answer, LimitHit), answer
        if counted:
            for bucket, threshold in buckets.items():
                assert before[bucket] + counted <= threshold, f"{counted} too many in {bucket}"
        for answer in (one for its_answers in answers.values() for one in its_answers if isinstance(one, LimitHit)):
            self._check_refusal(answer, plan, buckets)

    def _end(self, calls: list[tuple[Worker, Call]], *, was_sent: bool = True) -> None:
        def all_of_them() -> None:
            for worker, call in calls:
                self.world.end(worker, call, was_sent=was_sent)

        self.loop.now(all_of_them)

    def _check_refusal(self, hit: LimitHit, plan: Plan, buckets: dict[Bucket, int]) -> None:
        assert hit.bound in plan.bounds
        bucket = plan.key, hit.bound.counting_group
        threshold = hit.bound.limit.threshold
        if hit.bound.limit.type is LimitType.CONCURRENT_REQUEST and threshold:
            assert hit.retry_after_s == 1 or self.requests < 1_000_000, "the other limit is full as well"
            assert self.world.possible(bucket) >= threshold, f"refused for nothing by {bucket}"
        if threshold and not self.world.repeats_refusals:
            for earlier in plan.bounds[: plan.bounds.index(hit.bound)]:
                if earlier.limit.type is LimitType.CONCURRENT_REQUEST:
                    place = plan.key, earlier.counting_group
                    assert self.world.certain(place) < buckets[place], f"{place} is full as well, and nearer"
        if not threshold:
            assert hit.retry_after_s == 60

    def _plan(self, caller: str) -> Plan:
        if caller not in self.plans:
            path = []
            for name in PATHS[caller]:
                parent = PATHS[name][1] if len(PATHS[name]) > 1 else None
                limits = self.limits[name] | ({RPM: self.requests} if name == "root" else {})
                path.append(group(name, limits, parent, cascading=self.cascading))
            self.plans[caller] = plan_of(*path)
        return self.plans[caller]

    def _set_limit(self, name: str, threshold: int | None, unit: Unit) -> None:
        self.limits[name] = {} if threshold is None else {(LimitType.CONCURRENT_REQUEST, unit): threshold}

    def _links(self) -> list[Link]:
        return [*(machine.link for machine in self.world.machines), *(worker.link for worker in self.world.workers)]

    def _link(self, which: int) -> Link:
        """Choose a link whose network is whole, if there is one."""
        return _one([link for link in self._links() if link.is_healthy] or self._links(), which)

    def _heal(self, links: list[Link], late_s: float) -> None:
        for link in links:
            if not late_s:
                link.deliver()
            link.heal()
        self._wait(late_s)
        for link in links:
            link.deliver()

    def _wait(self, seconds: float) -> None:
        self.loop.now(asyncio.sleep(seconds))


def _one(some: list[Item], which: int) -> Item:
    return some[which % len(some)]


def _limited_buckets(plan: Plan) -> dict[Bucket, int]:
    """Return the buckets that count calls in flight, with their thresholds."""
    concurrent = [bound for bound in plan.bounds if bound.limit.type is LimitType.CONCURRENT_REQUEST]
    return {(plan.key, bound.counting_group): bound.limit.threshold for bound in concurrent}
