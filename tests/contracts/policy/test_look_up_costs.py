"""A call's look-ups read and parse the same, however many keys, groups, trees, and models of a group there are."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from policy.limits.groups import MAX_DEPTH, Enforcement, Group
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit, SlugLimits
from policy.snapshot import Row, group_to_wire
from proxy.edges.policy.row_values import entry_limits, path_limits
from tests.contracts.policy.test_replica import World, endpoint, key, workspace
from tests.contracts.policy.test_replica import world as world  # the fixture

FEW = (2, 2)
MANY = (8, 400)
"""Trees, and models of each group."""


class Work:
    """The work that was counted: steps of SQLite's machine, rows that are parsed, and their bytes."""

    def __init__(self) -> None:
        self.steps = 0
        self.rows = 0
        self.parsed_bytes = 0

    def step(self) -> None:
        self.steps += 1

    def parse(self, body: bytes) -> Any:
        self.rows += 1
        self.parsed_bytes += len(body)
        return orjson.loads(body)

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.steps, self.rows, self.parsed_bytes


@pytest.fixture
def counted(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], Work]:
    """Count the work of a look-up of the world's directory."""

    def count(look_up: Callable[[], object]) -> Work:
        work = Work()
        world.directory.endpoint("opens the file, follows the changes")
        assert world.directory._rows._conn is not None
        world.directory._rows._conn.set_progress_handler(work.step, 1)
        with monkeypatch.context() as patch:
            for module in ("directory", "row_values"):
                patch.setattr(f"proxy.edges.policy.{module}.orjson", SimpleNamespace(loads=work.parse))
            for values_of_this_process in (entry_limits, path_limits):
                values_of_this_process.cache_clear()
            look_up()
        world.directory._rows._conn.set_progress_handler(None, 1)
        return work

    return count


def group(tree: int, level: int, models: int, threshold: int = 5) -> Row:
    limits = (Limit(LimitType.REQUEST, Unit.MINUTE, threshold),)
    entries = tuple(SlugLimits(f"acme/{number:04}", limits) for number in range(models))
    parent = f"grp_{tree:03}_{level - 1}" if level else None
    place = (f"grp_{tree:03}_{level}", "ws", parent, f"customer-{tree:03}-{level}", Enforcement.CASCADING)
    return Row("group", place[0], 1, group_to_wire(Group(*place, entries)))


def policy(trees: int, models: int) -> Iterator[Row]:
    """Trees of five levels. Each group has all models and its own key."""
    yield workspace()
    yield from (endpoint(f"acme/{number:04}") for number in range(models))
    for tree in range(trees):
        for level in range(MAX_DEPTH):
            yield group(tree, level, models)
            yield key(f"key_{tree:03}_{level}", f"grp_{tree:03}_{level}")


def call(world: World, tree: int = 0, slug: str = "acme/0001") -> None:
    """Look up what a call of the tree's lowest group needs."""
    holder = world.directory.key_holder(f"key_{tree:03}_{MAX_DEPTH - 1}")
    assert holder is not None
    assert holder.group is not None
    route = world.directory.slug_route(holder.group, holder.key, slug)
    assert route is not None
    assert len(route.plan.bounds) == MAX_DEPTH


@pytest.mark.parametrize("again", [False, True], ids=["first call", "another slug"])
def test_look_ups_read_and_parse_as_much_whatever_else_there_is(
    world: World, counted: Callable[[Callable[[], object]], Work], again: bool
) -> None:
    works: list[Work] = []
    for size in (FEW, MANY):
        world.publish(*policy(*size), reset=True)
        if again:
            call(world, slug="acme/0000")
        works.append(counted(lambda: call(world)))
    few, many = works
    assert few.counts == many.counts
    assert 0 < few.rows <= 3 + 2 * MAX_DEPTH


def test_call_that_came_before_reads_nothing(world: World, counted: Callable[[Callable[[], object]], Work]) -> None:
    world.publish(*policy(*MANY), reset=True)
    call(world)
    assert counted(lambda: call(world)).counts == (0, 0, 0)


CHANGES = {
    "a limit of another tree": group(1, 0, FEW[1], threshold=9),
    "another limit of the same tree": Row("group", "grp_000_2", 2, None),  # see `changed`
    "another key": Row("key", "key_001_1", 2, None),
    "a new key": key("new"),
    "another endpoint": endpoint("acme/0000", "other"),
    "a new tree": group(7, 0, FEW[1]),
}


def changed(name: str) -> Row:
    row = CHANGES[name]
    if name == "another limit of the same tree":
        wire = group(0, 2, FEW[1]).body or {}
        wire["models"][0] = group(0, 2, 1, threshold=9).body["models"][0]  # type: ignore[index]
        return Row(row.kind, row.id, row.revision, wire)
    return row


@pytest.mark.parametrize("name", CHANGES)
def test_change_takes_nothing_from_calls_that_it_does_not_concern(
    world: World, counted: Callable[[Callable[[], object]], Work], name: str
) -> None:
    world.publish(*policy(*FEW), reset=True)
    call(world)
    world.publish(changed(name))
    assert counted(lambda: call(world)).counts == (0, 0, 0)


def test_limit_that_an_ancestor_gains_later_binds(world: World) -> None:
    """The limit was not among the rows that the plan was made of."""
    rows = [row for row in policy(*FEW) if row.id != "grp_000_1"]
    without = group(0, 1, 0)
    world.publish(*rows, without, reset=True)
    route = world.route("grp_000_4", "acme/0001")
    assert route is not None
    assert len(route.plan.bounds) == MAX_DEPTH - 1
    world.publish(group(0, 1, FEW[1]))
    call(world)
    world.publish(without)
    route = world.route("grp_000_4", "acme/0001")
    assert route is not None
    assert len(route.plan.bounds) == MAX_DEPTH - 1


def test_reader_that_missed_changes_reads_everything_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    only_the_last = "DELETE FROM changes WHERE number < (SELECT max(number) FROM changes)"
    monkeypatch.setattr("proxy.edges.policy.supervisor.policy_replica._FORGET_NAMES", only_the_last)
    world.publish(*policy(*FEW), reset=True)
    call(world)
    world.publish(group(0, 4, FEW[1], threshold=9))
    world.publish(Row("key", "key_001_1", 2, None))
    route = world.route("grp_000_4", "acme/0001")
    assert route is not None
    assert route.plan.bounds[0].limit.threshold == 9


def test_path_changes_with_the_file(tmp_path: Path) -> None:
    """A rebuilt replica is another file: its changes have other numbers."""
    world = World(tmp_path / "other.db")
    world.publish(*policy(*FEW), reset=True)
    call(world)
    world.publish(Row("key", "key_001_1", 2, None))
    world.publish(
        *[group(0, level, FEW[1], threshold=9) for level in range(MAX_DEPTH)], endpoint("acme/0001"), reset=True
    )
    route = world.route("grp_000_4", "acme/0001")
    assert route is not None
    assert route.plan.bounds[0].limit.threshold == 9
    world.directory.close()
    world.replica.close()
