"""An attempt's driver with nodes, checkpoints and room in memory."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from policy.training.artifacts import Artifact
from policy.training.job_spec import JobSpec
from policy.training.reports import Claimed, JobReport, Load, Restore
from policy.training.resources import NodeResources
from policy.training.statuses import Outcome, Phase
from tests.waiting import eventually
from trainer.backend import EnvironmentRefusedError, JobEnvironment
from trainer.edges.ray.driver.attempt import Attempt
from trainer.edges.ray.driver.driver_parts import LostError, NodeStart, NoRoomError, Progress, Synced
from trainer.edges.ray.launch import RayLaunch
from trainer.edges.ray.records import Output, Record
from trainer.runner.state import Exit
from trainer.settings import WeightsTerms

SPEC = JobSpec(("train",), NodeResources(1000, 256), node_count=2, checkpoint_path="checkpoints")
LAUNCH = RayLaunch(
    job=Claimed("job", 1, SPEC, "token", None),
    hosts=("host-0", "host-1"),
    ray_nodes=("a", "b"),
    control_url="http://control",
    directory="/tmp",
    checkpoint_max_bytes=1024,
    checkpoint_store="memory://",
    stop_grace_s=1.0,
    version="1",
    weights=WeightsTerms(),
    weights_max_bytes=1024,
)


def exited(status: int = 0, **changes: Any) -> Exit:
    whole = Exit(status, None, did_run=True, was_stopped=False, is_kept=False, at_ns=time.time_ns())
    return whole._replace(**changes)


@dataclass
class Node:
    """Ends as told, and when it is stopped."""

    exit: Exit | None = None
    has_ended: bool = False
    loss: LostError | None = None
    was_cleaned: bool = False
    starts: list[NodeStart] = field(default_factory=list)
    load_count: int = 0
    bad_artifact: LostError | None = None
    unpacked_before: int | None = None
    """The number of starts before its artifacts were unpacked."""
    lost_weights: LostError | None = None
    fetched_before: int | None = None
    """The number of starts before its weights were fetched."""

    def end(self, exit: Exit | None) -> None:
        self.exit = exit
        self.has_ended = True

    async def prepare(self) -> str:
        return "10.0.0.1"

    async def load(self) -> None:
        self.load_count += 1

    async def unpack(self) -> None:
        self.unpacked_before = len(self.starts)
        if self.bad_artifact is not None:
            raise self.bad_artifact

    async def fetch(self, environment: JobEnvironment) -> None:
        self.fetched_before = len(self.starts)
        if self.lost_weights is not None:
            raise self.lost_weights

    async def start(self, start: NodeStart) -> None:
        self.starts.append(start)

    async def progress(self, offset: int) -> Progress:
        if self.loss is not None:
            raise self.loss
        if offset == 0:
            return Progress(b"1 1 hello\n")
        return Progress(b"", self.has_ended, self.exit)

    async def stop(self) -> None:
        if not self.has_ended:
            self.end(exited(was_stopped=True))

    async def clean(self) -> None:
        self.was_cleaned = True


@dataclass
class Cluster:
    """Room for two nodes and their checkpoints."""

    nodes: tuple[Node, Node] = field(default_factory=lambda: (Node(), Node()))
    has_room: bool = True
    is_slow: bool = False
    is_released: bool = False
    syncs_left: int = 0
    restored: list[Restore] = field(default_factory=list)
    was_cleaned: bool = False

    async def reserve(self) -> None:
        if self.is_slow:
            await asyncio.Event().wait()
        if not self.has_room:
            raise NoRoomError("no room")

    def node(self, rank: int) -> Node:
        return self.nodes[rank]

    def checkpoints(self) -> "Cluster":
        return self

    def release(self) -> None:
        self.is_released = True

    async def restore(self, restore: Restore) -> None:
        self.restored.append(restore)

    async def look(self) -> Synced:
        return Synced((), False)

    async def finish(self) -> Synced:
        self.syncs_left = max(0, self.syncs_left - 1)
        return Synced((), self.syncs_left > 0)

    async def clean(self) -> None:
        self.was_cleaned = True


@dataclass
class World:
    cluster: Cluster = field(default_factory=Cluster)
    records: list[Record] = field(default_factory=list)
    refusal: EnvironmentRefusedError | None = None
    launch: RayLaunch = LAUNCH

    async def spend(self, token: str) -> JobEnvironment:
        if self.refusal is not None:
            raise self.refusal
        return JobEnvironment({"A": "1"}, ())

    def attempt(self) -> Attempt:
        return Attempt(self.launch, self.cluster, self.spend, self.records.append)

    @property
    def reports(self) -> list[JobReport]:
        return [record for record in self.records if isinstance(record, JobReport)]

    def complete(self, _: Attempt) -> None:
        for node in self.cluster.nodes:
            node.end(exited())

    async def run(self, then: Callable[[Attempt], None]) -> JobReport:
        """Run an attempt, and do something once its nodes run."""
        attempt = self.attempt()
        running = asyncio.ensure_future(attempt.run())
        await eventually(lambda: self.reports and self.reports[-1].phase is Phase.RUNNING)
        then(attempt)
        await running
        return self.reports[-1]


async def test_each_machine_loads_the_checkpoints_once() -> None:
    for ray_nodes, load_counts in ((("a", "b"), [1, 1]), (("a", "a"), [1, 0])):
        job = replace(LAUNCH.job, loads=(Load("rank-0", Restore("c", "other/c/v", ())),))
        world = World(launch=replace(LAUNCH, job=job, ray_nodes=ray_nodes))
        await world.run(world.complete)
        assert [node.load_count for node in world.cluster.nodes] == load_counts


async def test_nodes_that_exit_with_0_complete_the_attempt() -> None:
    world = World()

    report = await world.run(world.complete)

    assert (report.phase, report.outcome, report.is_syncing) == (Phase.ENDED, Outcome.COMPLETED, False)
    assert [node.exit_status for node in report.nodes] == [0, 0]
    assert world.cluster.nodes[0].starts == [NodeStart(JobEnvironment({"A": "1"}, ()), "10.0.0.1")]
    assert (world.cluster.is_released, world.cluster.was_cleaned) == (True, True)


def with_artifact() -> World:
    return World(launch=replace(LAUNCH, job=replace(LAUNCH.job, artifacts=(Artifact("upload_1.tar", ()),))))


async def test_artifacts_are_unpacked_on_each_node_before_any_starts() -> None:
    world = with_artifact()

    assert (await world.run(world.complete)).outcome is Outcome.COMPLETED

    assert [node.unpacked_before for node in world.cluster.nodes] == [0, 0]
    without = World()
    await without.run(without.complete)
    assert [node.unpacked_before for node in without.cluster.nodes] == [None, None]


async def test_bad_artifact_fails_the_attempt_before_anything_starts() -> None:
    world = with_artifact()
    world.cluster.nodes[1].bad_artifact = LostError("artifact upload_1.tar cannot be unpacked")

    await world.attempt().run()

    report = world.reports[-1]
    assert (report.outcome, report.error_message) == (
        Outcome.DEPLOY_FAILED,
        "artifact upload_1.tar cannot be unpacked",
    )
    assert [node.starts for node in world.cluster.nodes] == [[], []]
    assert all(node.was_cleaned for node in world.cluster.nodes)


async def test_output_is_told_with_its_offsets_and_its_end() -> None:
    world = World()

    await world.run(world.complete)

    records = [record for record in world.records if isinstance(record, Output) and record.rank == 1]
    assert records == [Output(1, 0, b"1 1 hello\n"), Output(1, 10, b"", is_end=True)]


async def test_node_that_fails_stops_the_others_and_is_the_reason() -> None:
    world = World()

    report = await world.run(lambda _: world.cluster.nodes[1].end(exited(3)))

    assert (report.outcome, report.error_message) == (Outcome.FAILED, "node 1 exited with status 3")
    assert world.cluster.nodes[0].has_ended


async def test_lost_node_stops_the_others_and_is_the_reason() -> None:
    world = World()

    def lose(_: Attempt) -> None:
        world.cluster.nodes[1].loss = LostError("node 1 was lost: its machine host-1 left the Ray cluster")

    report = await world.run(lose)

    assert report.outcome is Outcome.FAILED
    assert report.error_message == "node 1 was lost: its machine host-1 left the Ray cluster"
    assert [node.exit_status for node in report.nodes] == [0, -9]


async def test_stop_ends_all_nodes() -> None:
    report = await World().run(lambda attempt: attempt.stop())

    assert (report.outcome, report.error_message) == (Outcome.STOPPED, None)


async def test_stop_while_waiting_for_room_ends_the_attempt_at_once() -> None:
    world = World(Cluster(is_slow=True))
    attempt = world.attempt()
    running = asyncio.ensure_future(attempt.run())
    await eventually(lambda: world.records)

    attempt.stop()
    await running

    assert world.reports[-1].outcome is Outcome.STOPPED
    assert world.cluster.is_released


async def test_attempt_without_room_goes_back_into_the_queue() -> None:
    world = World(Cluster(has_room=False))

    await world.attempt().run()

    assert (world.reports[-1].outcome, world.reports[-1].error_message) == (Outcome.REQUEUED, "no room")


async def test_refused_environment_ends_the_attempt_before_a_node_starts() -> None:
    world = World(refusal=EnvironmentRefusedError("no such secret", Outcome.DEPLOY_FAILED))

    await world.attempt().run()

    assert (world.reports[-1].outcome, world.reports[-1].error_message) == (Outcome.DEPLOY_FAILED, "no such secret")
    assert [node.starts for node in world.cluster.nodes] == [[], []]
    assert all(node.was_cleaned for node in world.cluster.nodes)


async def test_checkpoint_is_restored_before_the_start() -> None:
    restore = Restore("step-1", "job/step-1/v1", ())
    world = World(launch=replace(LAUNCH, job=replace(LAUNCH.job, restore=restore)))

    await world.run(lambda attempt: attempt.stop())

    assert world.cluster.restored == [restore]


async def test_room_is_given_back_while_checkpoints_are_on_their_way() -> None:
    world = World(Cluster(syncs_left=3))

    await world.run(lambda attempt: attempt.stop())

    ended = [report.is_syncing for report in world.reports if report.phase is Phase.ENDED]
    assert ended == [True, False]
    assert world.cluster.is_released
