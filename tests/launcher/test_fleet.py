"""Checks what the fleet decides: a table for each rule, and a state machine for what holds in any order of events."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from launcher.demand import Load
from launcher.fleet import LONGEST_CALL_S, SETTLE_S, STOP_GRACE_S, Fleet, Kill, Phase, Start, Terminate
from launcher.options import Options
from launcher.start_attempts import FIRST_DELAY_S, MAX_FAILED_STARTS

IDLE_S = 10.0


def fleet_of(max_replicas: int = 1, **options: Any) -> Fleet:
    values = {"idle_timeout_s": IDLE_S, "start_timeout_s": 100.0, "drain_timeout_s": 25.0} | options
    return Fleet(Options("http://c", "key", "m", "d", ("server",), max_replicas=max_replicas, **values))


def look(fleet: Fleet, now: float, status: str = "ACTIVE", **load: Any) -> None:
    fleet.observe(now, status, Load(**load), 1)


def urls(fleet: Fleet) -> list[str]:
    return list(fleet.wanted_list)


def serving_fleet(count: int = 1, now: float = 0.0) -> Fleet:
    """A fleet with so many listed replicas."""
    fleet = fleet_of(count)
    look(fleet, now, parked=count)
    for start in fleet.actions(now):
        assert isinstance(start, Start)
        fleet.replicas[start.number].url = f"http://replica-{start.number}"
        fleet.became_ready(start.number, now)
    fleet.listed(now, fleet.wanted_list)
    assert len(fleet.wanted_list) == count
    return fleet


def test_nothing_is_started_unasked() -> None:
    fleet = fleet_of(4)
    look(fleet, 0.0, "SCALED_TO_ZERO")
    assert fleet.actions(0) == []
    assert fleet.wanted_status is None


def test_wake_starts_one_replica() -> None:
    fleet = fleet_of(4)
    fleet.wake(0)
    fleet.wake(0)
    assert fleet.wanted_status == "WAKING_UP"
    assert fleet.actions(0) == [Start(1)]
    assert fleet.actions(0) == []
    assert (fleet.wanted_status, fleet.wanted_list) == ("LOADING_MODEL", ())


@pytest.mark.parametrize(("calls", "expected"), [(1, 1), (3, 3), (50, 4)])
def test_load_starts_as_many_replicas_as_it_needs(calls: int, expected: int) -> None:
    fleet = fleet_of(4)
    look(fleet, 0, "SCALED_TO_ZERO", parked=calls)
    assert fleet.actions(0) == [Start(number + 1) for number in range(expected)]


def test_idle_replica_leaves_the_list_before_it_is_stopped() -> None:
    fleet = serving_fleet()
    look(fleet, IDLE_S)
    assert fleet.actions(IDLE_S) == []
    assert urls(fleet) == []
    look(fleet, IDLE_S + 100)
    assert fleet.actions(IDLE_S + 100) == [], "control still lists it"
    fleet.listed(200, ())
    look(fleet, 200 + SETTLE_S - 0.1, in_flight=0)
    assert fleet.actions(200 + SETTLE_S - 0.1) == [], "proxies may not know yet"
    look(fleet, 200 + SETTLE_S, in_flight=1)
    assert fleet.actions(200 + SETTLE_S) == []
    assert urls(fleet), "a call came late: it is not idle after all"


def test_draining_replica_is_stopped_when_no_call_is_left() -> None:
    fleet = serving_fleet(2)
    look(fleet, IDLE_S, in_flight=1)
    assert fleet.actions(IDLE_S) == []
    assert urls(fleet) == ["http://replica-1"], "the newest goes first"
    fleet.listed(IDLE_S, fleet.wanted_list)
    now = IDLE_S + SETTLE_S
    look(fleet, now, in_flight=1)
    assert fleet.actions(now) == []
    look(fleet, now + 1, in_flight=0)
    assert fleet.actions(now + 1) == [Terminate(2)]
    assert fleet.actions(now + STOP_GRACE_S) == []
    assert fleet.actions(now + 1 + STOP_GRACE_S) == [Kill(2, "did not end within 10 s after SIGTERM")]
    assert fleet.actions(now + 2 + STOP_GRACE_S) == []
    assert not fleet.ended(2, now + 12, "was killed")


def test_draining_ends_when_no_call_can_be_left() -> None:
    fleet = serving_fleet(2)
    look(fleet, IDLE_S, in_flight=1)
    fleet.actions(IDLE_S)
    fleet.listed(IDLE_S, fleet.wanted_list)
    look(fleet, IDLE_S + LONGEST_CALL_S, in_flight=1)
    assert fleet.actions(IDLE_S + LONGEST_CALL_S) == [Terminate(2)]


def test_draining_replica_is_taken_back_instead_of_starting_another() -> None:
    fleet = serving_fleet()
    look(fleet, IDLE_S)
    fleet.actions(IDLE_S)
    assert urls(fleet) == []
    fleet.wake(IDLE_S + 1)
    assert fleet.actions(IDLE_S + 1) == []
    assert urls(fleet) == ["http://replica-1"]


def test_stopping_replica_keeps_its_place_until_it_has_ended() -> None:
    fleet = serving_fleet()
    look(fleet, IDLE_S)
    fleet.actions(IDLE_S)
    fleet.listed(IDLE_S, ())
    look(fleet, IDLE_S + SETTLE_S)
    assert fleet.actions(IDLE_S + SETTLE_S) == [Terminate(1)]
    fleet.wake(IDLE_S + 3)
    assert fleet.actions(IDLE_S + 3) == []
    fleet.ended(1, IDLE_S + 4, "ended with status 0")
    assert fleet.actions(IDLE_S + 4) == [Start(2)]


def test_crashed_replica_leaves_the_list_at_once_and_is_replaced_after_a_pause() -> None:
    fleet = serving_fleet()
    assert fleet.ended(1, 1.0, "crashed")
    assert urls(fleet) == []
    assert fleet.actions(1.0) == []
    assert fleet.wanted_status == "WAKING_UP"
    assert fleet.actions(1.0 + FIRST_DELAY_S) == [Start(2)]


def fail_starts(fleet: Fleet, times: int) -> float:
    """Let so many starts fail in a row; returns the time after the last one."""
    now = 0.0
    for _ in range(times):
        now = max(now, fleet.attempts.not_before)
        (start,) = fleet.actions(now)
        assert fleet.ended(start.number, now, "ended with status 7")
    return now


def test_five_failed_starts_are_a_failed_deployment() -> None:
    fleet = fleet_of(3)
    fleet.wake(0)
    now = fail_starts(fleet, MAX_FAILED_STARTS)
    assert fleet.error == "5 starts in a row failed; the last replica ended with status 7"
    assert fleet.wanted_status == "FAILED"
    assert fleet.actions(now + 1000) == []
    fleet.wake(now + 1000)
    assert (fleet.error, fleet.wanted_status) == ("", "WAKING_UP")
    assert len(fleet.actions(now + 1000)) == 1


def test_only_a_status_that_left_failed_is_a_retry() -> None:
    fleet = fleet_of()
    fleet.wake(0)
    now = fail_starts(fleet, MAX_FAILED_STARTS)
    look(fleet, now, "LOADING_MODEL")
    assert fleet.error, "control has not been told yet"
    look(fleet, now + 1, "FAILED")
    look(fleet, now + 2, "FAILED")
    assert fleet.error
    look(fleet, now + 3, "SCALED_TO_ZERO")
    assert not fleet.error
    assert len(fleet.actions(now + 3)) == 1


def test_one_replica_is_tried_at_a_time_after_a_failed_start() -> None:
    fleet = fleet_of(3)
    look(fleet, 0, "SCALED_TO_ZERO", parked=3)
    assert len(fleet.actions(0)) == 3
    for number in (1, 2, 3):
        fleet.ended(number, 0, "failed")
    now = fleet.attempts.not_before
    assert fleet.actions(now) == [Start(4)]
    assert fleet.actions(now + 50) == []
    fleet.became_ready(4, now + 50)
    assert fleet.actions(now + 50) == [Start(5), Start(6)]


def test_failed_starts_do_not_touch_replicas_that_serve() -> None:
    fleet = fleet_of(2)
    fleet.wake(0)
    fleet.actions(0)
    fleet.replicas[1].url = "http://replica-1"
    fleet.became_ready(1, 0)
    look(fleet, 0, in_flight=2)
    now = fail_starts(fleet, MAX_FAILED_STARTS + 1)
    assert fleet.error == ""
    assert urls(fleet) == ["http://replica-1"]
    fleet.ended(1, now, "crashed")
    now = fleet.attempts.not_before
    (start,) = fleet.actions(now)
    fleet.ended(start.number, now, "failed")
    assert fleet.error


def test_start_that_takes_too_long_is_killed_once() -> None:
    fleet = fleet_of()
    fleet.wake(0)
    fleet.actions(0)
    assert fleet.actions(99) == []
    assert fleet.actions(100) == [Kill(1, "did not become healthy within 100 s")]
    assert fleet.actions(101) == []
    assert fleet.ended(1, 101, "was killed")


def test_replica_that_is_loading_is_not_idle() -> None:
    fleet = fleet_of()
    fleet.wake(0)
    fleet.actions(0)
    for second in range(90):
        look(fleet, second, "LOADING_MODEL")
        assert fleet.actions(second) == []
    fleet.replicas[1].url = "http://replica-1"
    fleet.became_ready(1, 90)
    look(fleet, 90 + IDLE_S - 1)
    fleet.actions(90 + IDLE_S - 1)
    assert urls(fleet), "its idle time begins when it is ready"


def test_stop_drains_what_serves_and_ends_what_starts() -> None:
    fleet = serving_fleet(2)
    fleet.ended(2, 0, "crashed")
    fleet.actions(FIRST_DELAY_S)
    now = FIRST_DELAY_S
    fleet.stop(now, 25)
    assert fleet.actions(now) == [Terminate(3)]
    assert (fleet.wanted_list, fleet.wanted_status) == ((), None)
    assert fleet.actions(now + 24.9) == [Kill(3, "did not end within 10 s after SIGTERM")]
    assert fleet.actions(now + 25) == [Terminate(1)], "the drain timeout, though control lists it"
    was_over = [fleet.is_over]
    for number in (1, 3):
        fleet.ended(number, now, "")
        was_over.append(fleet.is_over)
    assert was_over == [False, False, True]
    fleet.wake(now + 30)
    assert fleet.actions(now + 30) == []


def test_second_stop_ends_draining() -> None:
    fleet = serving_fleet()
    fleet.stop(0, 25)
    assert fleet.actions(1) == []
    fleet.stop(1, 0)
    assert fleet.actions(1) == [Terminate(1)]


class FleetMachine(RuleBasedStateMachine):
    """Processes and control behave in any way; what must hold is in the invariants."""

    @initialize(max_replicas=st.integers(1, 4))
    def begin(self, max_replicas: int) -> None:
        self.now = 0.0
        self.fleet = fleet_of(max_replicas)
        self.alive: set[int] = set()
        self.terminated: set[int] = set()
        self.control_list: tuple[str, ...] = ()
        self.is_stopping = False

    @rule(seconds=st.floats(0, 40), in_flight=st.integers(0, 6), parked=st.integers(0, 6))
    def time_passes_and_control_answers(self, seconds: float, in_flight: int, parked: int) -> None:
        self.now += seconds
        self.control_list = self.fleet.wanted_list
        self.fleet.listed(self.now, self.control_list)
        status = self.fleet.wanted_status or ("ACTIVE" if self.control_list else "SCALED_TO_ZERO")
        look(self.fleet, self.now, status, in_flight=in_flight, parked=parked)

    @rule(seconds=st.floats(0, 40))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def wake(self) -> None:
        self.fleet.wake(self.now)

    @rule()
    def act(self) -> None:
        before = {number for number in self.alive if self.fleet.replicas[number].phase is Phase.DRAINING}
        for action in self.fleet.actions(self.now):
            if isinstance(action, Start):
                assert not self.is_stopping
                self.fleet.replicas[action.number].url = f"http://{action.number}"
                self.alive.add(action.number)
            elif isinstance(action, Terminate):
                assert action.number in self.alive
                assert action.number not in self.terminated
                url = self.fleet.replicas[action.number].url
                assert self.is_stopping or (action.number in before and url not in self.control_list)
                self.terminated.add(action.number)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def replica_becomes_ready(self, data: st.DataObject) -> None:
        self.fleet.became_ready(data.draw(st.sampled_from(sorted(self.alive))), self.now)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def replica_ends(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.alive)))
        self.fleet.ended(number, self.now, "ended")
        self.alive.discard(number)
        self.terminated.discard(number)

    @rule()
    def stop(self) -> None:
        self.fleet.stop(self.now, 25)
        self.is_stopping = True

    @invariant()
    def no_more_processes_than_allowed(self) -> None:
        if hasattr(self, "fleet"):
            assert set(self.fleet.replicas) == self.alive
            assert len(self.alive) <= self.fleet.options.max_replicas

    @invariant()
    def only_running_replicas_are_listed(self) -> None:
        if hasattr(self, "fleet"):
            assert set(self.fleet.wanted_list) <= {f"http://{number}" for number in self.alive - self.terminated}


FleetMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestFleetMachine = FleetMachine.TestCase
