"""The switchboard's promises hold for every order of events: a state machine beside a simple model of its calls."""

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from policy.deployments import NOT_SERVING, PARKING, Deployment, HealthCheck, Where
from policy.snapshot import ModelRow
from proxy.replicas.replica_calls import CallEnded, Wanted
from proxy.replicas.supervisor.platform_call import CallId, WaitsFor, Why
from proxy.replicas.supervisor.switchboard import Clocks, Switchboard

URLS = ["http://a", "http://b", "http://c"]
STATUSES = ["ACTIVE", "ACTIVE", "UNHEALTHY", "SCALED_TO_ZERO", "LOADING_MODEL", "INACTIVE"]
ENDED = CallEnded(ended_at_ms=1, request_id="r", method="POST", path="/p", status=200, duration_s=0.1)
WAITING = "waiting"
RUNNING = "running"
REFUSED = "refused"
UNREACHED = "unreached"


@dataclass
class Call:
    """One call as its worker sees it."""

    id: CallId
    request: Wanted
    state: str = WAITING
    what: str = ""
    url: str = ""
    deployment_id: str = ""
    parked: bool = False
    avoid: set[str] = field(default_factory=set)
    overtaken: Counter[str] = field(default_factory=Counter)
    """Starts of other turns at its deployment since its own turn last started there, while this call waited."""


class SwitchboardMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.wakes_at: float | None = None
        self.calls: dict[CallId, Call] = {}
        self.deployments = {id: Deployment(id, "ACTIVE") for id in ("d1", "d2")}
        self.environment = "d1"
        self.numbers = 0
        self.switchboard = Switchboard(self, self, Clocks(lambda: self.now, lambda: 0), lambda below: below - 1)

    def get(self, model_id: str) -> ModelRow:
        return ModelRow("m", "w", self.deployments, {"production": self.environment})

    # What the switchboard says.

    def assigned(self, id: CallId, url: str) -> None:
        call = self.calls[id]
        assert call.state == WAITING, "one final answer for each ask"
        policy = self.policy_of(call)
        assert policy.status not in NOT_SERVING
        assert url in policy.replicas
        assert call.parked or url not in call.avoid
        if call.request.background:
            assert not self.waiting_at(policy.id), "a background call comes after all others"
        assert policy.max_concurrency is None or self.running(policy.id)[url] < policy.max_concurrency
        call.state = RUNNING
        call.url = url
        call.deployment_id = policy.id
        self.count_overtaking(call)

    def count_overtaking(self, call: Call) -> None:
        """Check that no other turn starts twice while a call waits: in a round each turn starts once per deployment."""
        if call.request.background:
            return
        for other in self.waiting_at(call.deployment_id):
            if other.request.turn == call.request.turn:
                other.overtaken.clear()
            elif other.what and not other.avoid:
                other.overtaken[call.request.turn] += 1
                assert other.overtaken[call.request.turn] <= 1, "a turn waits at most one round"

    def waits(self, id: CallId, what: WaitsFor) -> None:
        call = self.calls[id]
        assert call.state == WAITING
        assert call.what != what.value, "told only what is new"
        call.what = what.value
        call.parked = not call.request.background and (call.parked or what is WaitsFor.REPLICA)

    def refused(self, id: CallId, why: Why) -> None:
        call = self.calls[id]
        assert call.state == WAITING, "one final answer for each ask"
        assert not (call.parked and why in (Why.NO_REPLICA, Why.FULL)), "never after it was parked"
        assert (why is Why.NOT_ROUTED) <= call.parked
        assert not call.request.background or (why is Why.NO_REPLICA and call.avoid), (
            "it waits until it was unreachable"
        )
        if why is Why.FULL:
            policy = self.policy_of(call)
            queued = [one for one in self.waiting_at(self.policy_of(call).id) if not one.parked]
            healthy = next(load.healthy for load in self.switchboard.loads() if load.deployment_id == policy.id)
            assert len(queued) > policy.max_queued * len(healthy), "background calls take no room"
        call.state = REFUSED

    def wake_at(self, at: float | None) -> None:
        self.wakes_at = at

    # The model.

    def policy_of(self, call: Call) -> Deployment:
        return self.deployments[call.request.where.deployment_id or self.environment]

    def waiting_at(self, deployment_id: str) -> list[Call]:
        """Return the calls that wait at the deployment, without background calls."""
        calls = (call for call in self.in_state(WAITING) if not call.request.background)
        return [call for call in calls if self.policy_of(call).id == deployment_id]

    def running(self, deployment_id: str) -> Counter[str]:
        return Counter(
            call.url for call in self.calls.values() if call.state is RUNNING and call.deployment_id == deployment_id
        )

    def in_state(self, *states: str) -> list[Call]:
        return [call for call in self.calls.values() if call.state in states]

    # What happens.

    @rule(slot=st.integers(0, 1), turn=st.sampled_from("xyz"), where=st.sampled_from([None, None, "d1", "d2"]))
    def ask(self, slot: int, turn: str, where: str | None) -> None:
        self.numbers += 1
        call = Call((slot, self.numbers), Wanted("w", "m", Where(None, where), turn))
        self.calls[call.id] = call
        self.switchboard.ask(call.id, call.request)
        assert call.state is not WAITING or call.what, "each ask is answered at once"

    @rule(slot=st.integers(0, 1), where=st.sampled_from([None, "d1", "d2"]))
    def ask_in_the_background(self, slot: int, where: str | None) -> None:
        self.numbers += 1
        call = Call((slot, self.numbers), Wanted("w", "m", Where(None, where), "x", background=True))
        self.calls[call.id] = call
        self.switchboard.ask(call.id, call.request)
        assert call.state is RUNNING or call.what, "never refused at first"

    @precondition(lambda self: self.in_state(RUNNING))
    @rule(data=st.data(), event=st.sampled_from(["answered", "reset", "reset", "unreachable", "unreachable"]))
    def outcome(self, data: st.DataObject, event: str) -> None:
        call = data.draw(st.sampled_from(self.in_state(RUNNING)))
        if event == "unreachable":
            call.avoid.add(call.url)
            call.state = UNREACHED
        getattr(self.switchboard, event)(call.id)

    @precondition(lambda self: self.in_state(UNREACHED))
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.in_state(UNREACHED)))
        call.state = WAITING
        call.what = ""
        self.switchboard.ask(call.id, call.request, frozenset(call.avoid))
        assert call.state is not WAITING or call.what

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(list(self.calls.values())))
        del self.calls[call.id]
        self.switchboard.ended(call.id, ENDED)

    @rule(slot=st.integers(0, 1))
    def worker_dies(self, slot: int) -> None:
        self.calls = {id: call for id, call in self.calls.items() if id[0] != slot}
        self.switchboard.worker_died(slot)

    @rule(
        id=st.sampled_from(["d1", "d2"]),
        status=st.sampled_from(STATUSES),
        urls=st.sets(st.sampled_from(URLS)),
        health=st.booleans(),
        bounds=st.tuples(st.sampled_from([None, 1, 2]), st.integers(0, 3)),
    )
    def deploy(self, id: str, status: str, urls: Set[str], health: bool, bounds: tuple[int | None, int]) -> None:
        check = HealthCheck() if health else None
        self.deployments = self.deployments | {id: Deployment(id, status, tuple(sorted(urls)), check, *bounds)}
        self.forget_overtaking()
        self.switchboard.policy_changed(["m"])

    @rule(id=st.sampled_from(["d1", "d2"]))
    def point_environment(self, id: str) -> None:
        for call in self.in_state(WAITING):
            if call.request.where.deployment_id is None and id != self.environment:
                call.what = ""
        self.environment = id
        self.forget_overtaking()
        self.switchboard.policy_changed(["m"])

    def forget_overtaking(self) -> None:
        """Calls that move to another deployment join its round anew."""
        for call in self.calls.values():
            call.overtaken.clear()

    @rule(id=st.sampled_from(["d1", "d2"]), url=st.sampled_from(URLS), healthy=st.booleans())
    def probe(self, id: str, url: str, healthy: bool) -> None:
        self.switchboard.probed(id, url, healthy)

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 40.0]))
    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.wakes_at is not None and self.wakes_at <= until:
            assert self.wakes_at > self.now or self.wakes_at == until, "no timer that fires at once"
            self.now = max(self.now, self.wakes_at)
            self.switchboard.woke_up()
        self.now = until

    # What holds at any time.

    @invariant()
    def figures_are_the_calls(self) -> None:
        for load in self.switchboard.loads():
            waits = [call.what for call in self.in_state(WAITING) if self.policy_of(call).id == load.deployment_id]
            assert load.in_flight == sum(self.running(load.deployment_id).values())
            assert (load.queued, load.parked) == (waits.count("turn"), waits.count("replica"))

    @invariant()
    def nobody_waits_while_a_replica_has_room(self) -> None:
        loads = {load.deployment_id: load for load in self.switchboard.loads()}
        for call in self.in_state(WAITING):
            policy = self.policy_of(call)
            if call.request.background and (policy.status in NOT_SERVING or self.waiting_at(policy.id)):
                continue
            assert policy.status not in NOT_SERVING
            if policy.status in PARKING and policy.health is None:
                continue
            most = policy.max_concurrency
            running = self.running(policy.id)
            room = {url for url in loads[policy.id].healthy if most is None or running[url] < most}
            assert room <= call.avoid, "only a replica that was unreachable for it"

    @invariant()
    def only_who_was_parked_waits_without_a_healthy_replica(self) -> None:
        healthy = {load.deployment_id: load.healthy for load in self.switchboard.loads()}
        for call in self.in_state(WAITING):
            assert call.what == "replica" or healthy[self.policy_of(call).id]

    def teardown(self) -> None:
        for slot in (0, 1):
            self.worker_dies(slot)
        assert all((load.in_flight, load.queued, load.parked) == (0, 0, 0) for load in self.switchboard.loads())


TestSwitchboard = SwitchboardMachine.TestCase
TestSwitchboard.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
