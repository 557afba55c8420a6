"""A worker admits and sheds calls up to its capacity, and its accounting stays exact."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proxy.capacity.worker_capacity import IDLE_KEPT, CallLoad, Capacity, CapacityLimits, GroupHoldings
from proxy.refusals import ShedError
from tests.proxy.capacity.idle import check_idle


def admit_until_shed(capacity: Capacity, workspace: str, key: str, take: Callable[[CallLoad], None]) -> list[CallLoad]:
    """Admit calls of one key, each taking with `take`, until one is shed; returns those admitted."""
    loads: list[CallLoad] = []
    while True:
        load = capacity.enter()
        try:
            load.claim(workspace, key)
            take(load)
        except ShedError:
            load.leave()
            return loads
        loads.append(load)


def nothing(load: CallLoad) -> None:
    pass


def park(load: CallLoad) -> None:
    load.park()


def hold(load: CallLoad) -> None:
    load.hold(1)


def test_each_limit_sheds_and_released_capacity_is_reused() -> None:
    capacity = Capacity(CapacityLimits(max_in_flight=2, max_parked=1, max_held_bytes=10))
    one = capacity.enter()
    other = capacity.enter()
    with pytest.raises(ShedError):
        capacity.enter()
    other.leave()
    other = capacity.enter()
    one.claim("w1", "k1")
    other.claim("w2", "k2")
    one.park()
    with pytest.raises(ShedError):
        other.park()
    one.unpark()
    other.park()
    one.hold(10)
    with pytest.raises(ShedError):
        other.hold(1)
    one.drop()
    other.hold(10)
    assert capacity.taken_sheds() == {("in_flight", "worker"): 1, ("parked", "worker"): 1, ("memory", "worker"): 1}
    assert capacity.taken_sheds() == {}


def test_groups_without_calls_make_room_for_others() -> None:
    capacity = Capacity()
    busy = capacity.enter()
    busy.claim("w", "busy")
    holdings = capacity.groups["busy"]
    for number in range(3 * IDLE_KEPT):
        load = capacity.enter()
        load.claim(f"w{number}", f"k{number}")
        load.leave()
        assert len(capacity.groups) <= IDLE_KEPT
        assert len(capacity.workspaces) <= IDLE_KEPT
    assert capacity.groups["busy"] is holdings
    assert capacity.workspaces["w"] is holdings.workspace
    other = capacity.enter()
    other.claim("w", "other")
    assert holdings.workspace.in_flight == 2


def test_groups_that_all_have_calls_are_kept() -> None:
    capacity = Capacity(CapacityLimits(max_in_flight=100 * IDLE_KEPT))
    loads = []
    for number in range(2 * IDLE_KEPT):
        load = capacity.enter()
        load.claim(f"w{number}", f"k{number}")
        loads.append(load)
    assert len(capacity.groups) == len(capacity.workspaces) == 2 * IDLE_KEPT
    for load in loads:
        load.leave()
    capacity.enter().claim("w", "k")
    assert (set(capacity.groups), set(capacity.workspaces)) == ({"k"}, {"w"})


@pytest.mark.parametrize("take", [nothing, park, hold])
def test_workspace_leaves_capacity_to_the_next_workspace(take: Callable[[CallLoad], None]) -> None:
    """The first workspace gets three quarters of 1000, the next three quarters of the rest, and so on."""
    capacity = Capacity(CapacityLimits(2000 if take is not nothing else 1000, 1000, 1000))
    counts = []
    for workspace in range(4):
        before = capacity.in_flight
        key = 0
        while admit_until_shed(capacity, f"w{workspace}", f"k{workspace}-{key}", take):
            key += 1
        counts.append(capacity.in_flight - before)
    assert 735 <= counts[0] <= 750
    assert sum(counts) < 1000
    assert all(later >= 1 for later in counts)


def test_group_leaves_capacity_to_other_groups_of_its_workspace() -> None:
    capacity = Capacity(CapacityLimits(max_in_flight=1000))
    first = len(admit_until_shed(capacity, "w", "first", nothing))
    second = len(admit_until_shed(capacity, "w", "second", nothing))
    assert 680 <= first <= 700
    assert second >= 10
    assert set(capacity.taken_sheds()) == {("in_flight", "group")}


def test_released_capacity_goes_to_the_workspace_with_less() -> None:
    capacity = Capacity(CapacityLimits(max_in_flight=1000))
    greedy = admit_until_shed(capacity, "greedy", "g", nothing)
    modest = admit_until_shed(capacity, "modest", "m", nothing)
    for load in greedy[:200]:
        load.leave()
    assert len(admit_until_shed(capacity, "modest", "m", nothing)) > 100
    assert len(modest) < 1000 - len(greedy)


def test_one_large_piece_counts_like_many_small_ones() -> None:
    for piece in (1, 50, 250):
        capacity = Capacity(CapacityLimits(max_held_bytes=1000))
        while admit_until_shed(capacity, "w1", f"k{capacity.in_flight}", lambda load, piece=piece: load.hold(piece)):  # type: ignore[misc]
            pass
        assert 750 - piece < capacity.held_bytes <= 750


def test_only_body_of_a_workspace_may_exceed_its_share() -> None:
    capacity = Capacity(CapacityLimits(max_held_bytes=1000, workspace_share=0.1))
    one = capacity.enter()
    other = capacity.enter()
    one.claim("w1", "k1")
    for _ in range(9):
        one.hold(100)
    other.claim("w1", "k1")
    with pytest.raises(ShedError):
        other.hold(100)
    assert other.held_bytes == 0


def test_declared_body_without_room_is_refused_before_it_arrives() -> None:
    capacity = Capacity(CapacityLimits(max_held_bytes=1000))
    one = capacity.enter()
    other = capacity.enter()
    one.claim("w1", "k1")
    other.claim("w2", "k2")
    one.hold(600)
    with pytest.raises(ShedError):
        other.expect(500)
    other.expect(400)
    assert (capacity.held_bytes, other.held_bytes) == (600, 0)


def test_workspace_above_its_share_may_release_and_send_an_empty_body() -> None:
    capacity = Capacity(CapacityLimits(max_held_bytes=1000))
    one, another, other = (capacity.enter() for _ in range(3))
    one.claim("w1", "k1")
    another.claim("w1", "k1")
    other.claim("w2", "k2")
    one.hold(700)
    other.hold(290)
    another.hold(0)
    one.drop()
    another.hold(100)


class CapacityMachine(RuleBasedStateMachine):
    """Any sequence of operations: the totals are the sum over the calls, and zero at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.capacity = Capacity(CapacityLimits(max_in_flight=12, max_parked=4, max_held_bytes=1000))
        self.calls: list[tuple[CallLoad, str, str]] = []
        self.parked: list[CallLoad] = []

    @rule(workspace=st.sampled_from("abc"), key=st.sampled_from("xyz"), is_known=st.booleans())
    def enter(self, workspace: str, key: str, is_known: bool) -> None:
        try:
            load = self.capacity.enter()
        except ShedError:
            return
        if is_known:
            try:
                load.claim(workspace, workspace + key)
            except ShedError:
                load.leave()
                return
        self.calls.append((load, workspace if is_known else "", workspace + key if is_known else ""))

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), size_bytes=st.integers(0, 700), early=st.booleans())
    def hold(self, data: st.DataObject, size_bytes: int, early: bool) -> None:
        load, workspace, _ = data.draw(st.sampled_from(self.calls))
        if workspace:
            with suppress(ShedError):
                load.expect(size_bytes) if early else load.hold(size_bytes)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.calls))[0].drop()

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        load, workspace, _ = data.draw(st.sampled_from(self.calls))
        if workspace and load not in self.parked:
            with suppress(ShedError):
                load.park()
                self.parked.append(load)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self._end(data.draw(st.sampled_from(self.calls)))

    def _end(self, call: tuple[CallLoad, str, str]) -> None:
        if call[0] in self.parked:
            self.parked.remove(call[0])
            call[0].unpark()
        self.calls.remove(call)
        call[0].leave()

    @invariant()
    def totals_are_the_sum_of_the_calls(self) -> None:
        capacity = self.capacity
        assert capacity.in_flight == len(self.calls) <= 12
        assert capacity.parked == len(self.parked) <= 4
        assert capacity.held_bytes == sum(load.held_bytes for load, _, _ in self.calls) <= 1000
        of_workspaces = [(load, workspace) for load, workspace, _ in self.calls]
        of_keys = [(load, key) for load, _, key in self.calls]
        for totals, calls in ((capacity.workspaces, of_workspaces), (capacity.groups, of_keys)):
            names = {name for _, name in calls if name}
            assert names <= set(totals)
            idle = [one for name, one in totals.items() if name not in names]
            assert not any(one.in_flight or one.parked or one.held_bytes for one in idle)
            for name in names:
                loads = [load for load, owner in calls if owner == name]
                parked = sum(load in self.parked for load in loads)
                of_name = totals[name]
                assert of_name.name == name
                held_bytes = sum(load.held_bytes for load in loads)
                assert (of_name.in_flight, of_name.parked, of_name.held_bytes) == (len(loads), parked, held_bytes)

    def teardown(self) -> None:
        for call in list(self.calls):
            self._end(call)
        check_idle(self.capacity)
        assert self.capacity.unknown == GroupHoldings("")


TestCapacity = CapacityMachine.TestCase


STEPS = st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.integers(0, 400))


@given(st.lists(STEPS, max_size=40))
def test_shortcut_below_ample_load_decides_like_the_full_rule(steps: list[tuple[str, str, int]]) -> None:
    """The worker skips the shares far below its limits; that must not change a decision."""
    shortcut, full_rule = (Capacity(CapacityLimits(max_in_flight=20, max_held_bytes=1000)) for _ in range(2))
    full_rule.ample_in_flight = full_rule.ample_held_bytes = 0
    for workspace, key, size_bytes in steps:
        decided = []
        for capacity in (shortcut, full_rule):
            try:
                load = capacity.enter()
                load.claim(workspace, workspace + key)
                load.hold(size_bytes)
            except ShedError:
                decided.append("shed")
            else:
                decided.append("served")
        assert decided[0] == decided[1]
