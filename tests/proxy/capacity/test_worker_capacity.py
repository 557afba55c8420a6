"""What one worker admits and sheds, and that its bookkeeping comes out even."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proxy.capacity.worker_capacity import CallLoad, Capacity, CapacityLimits, Holdings
from proxy.refusals import ShedError


def full(capacity: Capacity, workspace: str, key: str, take: Callable[[CallLoad], None]) -> list[CallLoad]:
    """The calls of one key that got in and could take, until one was shed."""
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


def test_each_bound_sheds_and_what_was_given_back_is_free_again() -> None:
    capacity = Capacity(CapacityLimits(max_in_flight=2, max_parked=1, max_held_bytes=10))
    one, other = capacity.enter(), capacity.enter()
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


@pytest.mark.parametrize("take", [nothing, park, hold])
def test_a_workspace_gets_its_share_and_leaves_room_for_the_next(take: Callable[[CallLoad], None]) -> None:
    """Three quarters of 1000 for the first, of what that leaves for the second, and so on."""
    capacity = Capacity(CapacityLimits(2000 if take is not nothing else 1000, 1000, 1000))
    got = []
    for workspace in range(4):
        before = capacity.in_flight
        key = 0
        while full(capacity, f"w{workspace}", f"k{workspace}-{key}", take):
            key += 1
        got.append(capacity.in_flight - before)
    assert 735 <= got[0] <= 750
    assert sum(got) < 1000
    assert all(later >= 1 for later in got)


def test_a_key_leaves_room_for_the_other_keys_of_its_workspace() -> None:
    capacity = Capacity(CapacityLimits(max_in_flight=1000))
    first = len(full(capacity, "w", "first", nothing))
    second = len(full(capacity, "w", "second", nothing))
    assert 680 <= first <= 700
    assert second >= 10
    assert set(capacity.taken_sheds()) == {("in_flight", "key")}


def test_what_a_workspace_gives_back_goes_to_whoever_has_less() -> None:
    capacity = Capacity(CapacityLimits(max_in_flight=1000))
    greedy = full(capacity, "greedy", "g", nothing)
    modest = full(capacity, "modest", "m", nothing)
    for load in greedy[:200]:
        load.leave()
    assert len(full(capacity, "modest", "m", nothing)) > 100
    assert len(modest) < 1000 - len(greedy)


def test_a_large_piece_is_bounded_like_many_small_ones() -> None:
    for piece in (1, 50, 250):
        capacity = Capacity(CapacityLimits(max_held_bytes=1000))
        while full(capacity, "w1", f"k{capacity.in_flight}", lambda load, piece=piece: load.hold(piece)):  # type: ignore[misc]
            pass
        assert 750 - piece < capacity.held_bytes <= 750


def test_a_body_that_is_alone_may_have_what_is_free_whatever_the_share() -> None:
    capacity = Capacity(CapacityLimits(max_held_bytes=1000, workspace_share=0.1))
    one, other = capacity.enter(), capacity.enter()
    one.claim("w1", "k1")
    for _ in range(9):
        one.hold(100)
    other.claim("w1", "k1")
    with pytest.raises(ShedError):
        other.hold(100)
    assert other.held_bytes == 0


def test_a_body_that_has_no_room_is_refused_before_it_comes() -> None:
    capacity = Capacity(CapacityLimits(max_held_bytes=1000))
    one, other = capacity.enter(), capacity.enter()
    one.claim("w1", "k1")
    other.claim("w2", "k2")
    one.hold(600)
    with pytest.raises(ShedError):
        other.expect(500)
    other.expect(400)
    assert (capacity.held_bytes, other.held_bytes) == (600, 0)


def test_a_workspace_above_its_share_may_end_what_it_has_and_send_an_empty_body() -> None:
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


class Books(RuleBasedStateMachine):
    """Whatever calls do and in whatever order, the books are the sum of what they have, and in the end empty."""

    def __init__(self) -> None:
        super().__init__()
        self.capacity = Capacity(CapacityLimits(max_in_flight=12, max_parked=4, max_held_bytes=1000))
        self.calls: list[tuple[CallLoad, str, str]] = []
        self.parked: list[CallLoad] = []

    @rule(workspace=st.sampled_from("abc"), key=st.sampled_from("xyz"), known=st.booleans())
    def come(self, workspace: str, key: str, known: bool) -> None:
        try:
            load = self.capacity.enter()
        except ShedError:
            return
        if known:
            try:
                load.claim(workspace, workspace + key)
            except ShedError:
                load.leave()
                return
        self.calls.append((load, workspace if known else "", workspace + key if known else ""))

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
    def the_books_are_the_sum_of_the_calls(self) -> None:
        capacity = self.capacity
        assert capacity.in_flight == len(self.calls) <= 12
        assert capacity.parked == len(self.parked) <= 4
        assert capacity.held_bytes == sum(load.held_bytes for load, _, _ in self.calls) <= 1000
        of_workspaces = [(load, workspace) for load, workspace, _ in self.calls]
        of_keys = [(load, key) for load, _, key in self.calls]
        for books, calls in ((capacity.workspaces, of_workspaces), (capacity.keys, of_keys)):
            names = {name for _, name in calls if name}
            assert set(books) == names, "books of who has no call are forgotten"
            for name in names:
                mine = [load for load, whose in calls if whose == name]
                parked = sum(load in self.parked for load in mine)
                assert books[name] == Holdings(len(mine), parked, sum(load.held_bytes for load in mine))

    def teardown(self) -> None:
        for call in list(self.calls):
            self._end(call)
        capacity = self.capacity
        assert (capacity.in_flight, capacity.parked, capacity.held_bytes) == (0, 0, 0)
        assert (capacity.workspaces, capacity.keys) == ({}, {})
        assert capacity.unknown == Holdings()


TestBooks = Books.TestCase


STEPS = st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.integers(0, 400))


@given(st.lists(STEPS, max_size=40))
def test_nobody_is_let_in_because_nobody_was_checked(steps: list[tuple[str, str, int]]) -> None:
    """The short cut while there is plenty decides as the whole rule does."""
    short, whole = (Capacity(CapacityLimits(max_in_flight=20, max_held_bytes=1000)) for _ in range(2))
    whole.ample_in_flight = whole.ample_held_bytes = 0
    for workspace, key, size_bytes in steps:
        decided = []
        for capacity in (short, whole):
            try:
                load = capacity.enter()
                load.claim(workspace, workspace + key)
                load.hold(size_bytes)
            except ShedError:
                decided.append("shed")
            else:
                decided.append("served")
        assert decided[0] == decided[1]
