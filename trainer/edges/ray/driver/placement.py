"""The attempt's room in a Ray cluster, and its nodes and checkpoints as actors there. Runs in the driver.

Documented APIs only: placement groups with label selectors, actors, scheduling strategies, `ray.nodes`.
See docs/reference/training.md#ray.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from policy.training.reports import Restore
from trainer.backend import JobEnvironment
from trainer.edges.ray.driver.attempt_place import nodes_directory
from trainer.edges.ray.driver.checkpoint_actor import CheckpointActor
from trainer.edges.ray.driver.containers import PULL_TIMEOUT_S, runtime_env
from trainer.edges.ray.driver.driver_parts import LostError, NodeStart, NoRoomError, Progress, Synced
from trainer.edges.ray.driver.node_actor import NodeActor
from trainer.edges.ray.launch import RayLaunch
from trainer.edges.ray.machines import NODE_ID_LABEL, bundle

ROOM_TIMEOUT_S = 60.0
"""The time that the driver waits for room. The trainer places only what fits, so other users of the cluster hold it."""
_CALL_TIMEOUT_S = 60.0
"""The bound for all calls but the moving of files. The first call of an actor waits for its worker process, too."""
_IMAGE_TIMEOUT_S = 300.0
"""The bound for the first call of an actor in an image, which has been pulled: Podman may have to copy all of it."""
_VERDICT_TIMEOUT_S = 60.0
"""The time that Ray may take to notice that a machine is gone whose nodes do not answer."""
_VERDICT_LOOK_S = 0.5
_ROOM_LOOK_S = 1.0
_MAX_CAUSE_CHARS = 300


class RayPlacement:
    """Satisfies `parts.Placement`."""

    def __init__(self, launch: RayLaunch) -> None:
        self._launch = launch
        self._bundle = bundle(launch.job.spec.resources)
        self._group: PlacementGroup | None = None

    async def reserve(self) -> None:
        """One bundle per node, each on the machine that the trainer chose: where it has all, on distinct machines."""
        nodes = self._launch.ray_nodes
        self._group = placement_group(
            [self._bundle] * len(nodes),
            strategy="STRICT_SPREAD" if len(set(nodes)) == len(nodes) else "SPREAD",
            bundle_label_selector=[{NODE_ID_LABEL: node} for node in nodes],
        )
        for _ in range(int(ROOM_TIMEOUT_S / _ROOM_LOOK_S)):
            if await asyncio.to_thread(self._group.wait, _ROOM_LOOK_S):
                return
        raise NoRoomError(f"the Ray cluster had no room on {', '.join(self._launch.hosts)} for {ROOM_TIMEOUT_S:.0f} s")

    def node(self, rank: int) -> "RayNode | RayImageNode":
        image = self._launch.image
        if image is None:
            return self._node_in_room(rank)
        container = runtime_env(image, nodes_directory(self._launch))
        actor = self._actor(NodeActor, self._launch.ray_nodes[rank]).remote(self._launch, rank)
        beside = RayNode(actor, self._whereabouts(rank))
        return RayImageNode(beside, lambda: self._node_in_room(rank, runtime_env=container), image)

    def _node_in_room(self, rank: int, **more: Any) -> "RayNode":
        assert self._group is not None, "reserve comes first"
        bundle = dict(self._bundle)
        options: dict[str, Any] = {
            "num_cpus": bundle.pop("CPU"),
            "memory": bundle.pop("memory"),
            "num_gpus": bundle.pop("GPU", 0),
            "resources": bundle,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank),
        }
        actor = ray.remote(NodeActor).options(**options, **more).remote(self._launch, rank)
        return RayNode(actor, self._whereabouts(rank))

    def checkpoints(self) -> "RayCheckpoints":
        """Make the actor of uploads on the machine of node 0, outside of the reserved room: it delays no other job."""
        actor = self._actor(CheckpointActor, self._launch.ray_nodes[0]).remote(self._launch)
        return RayCheckpoints(actor, self._whereabouts(0))

    def _actor(self, actor_class: type, ray_node: str) -> Any:
        """An actor on that machine that takes none of its room."""
        strategy = NodeAffinitySchedulingStrategy(ray_node, soft=False)
        return ray.remote(actor_class).options(num_cpus=0, scheduling_strategy=strategy)

    def release(self) -> None:
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None

    def _whereabouts(self, rank: int) -> "Whereabouts":
        return Whereabouts(rank, self._launch.hosts[rank], self._launch.ray_nodes[rank])


class Whereabouts:
    """The machine of a node, for messages about its loss."""

    def __init__(self, rank: int, host: str, ray_node: str) -> None:
        self._rank = rank
        self._host = host
        self._ray_node = ray_node

    async def of(self, part: str, call: Callable[[], Any], timeout_s: float | None = _CALL_TIMEOUT_S) -> Any:
        """The result of a call of an actor. Raises LostError that names the node, its machine and the cause.

        The call may be repeated: Ray does not know at first whether an actor is gone or the network.
        """
        give_up_at = time.monotonic() + _VERDICT_TIMEOUT_S
        while True:
            try:
                async with asyncio.timeout(timeout_s):
                    return await call()
            except ActorUnavailableError:
                if time.monotonic() > give_up_at or not await self._is_in_cluster():
                    raise LostError(await self._loss()) from None
                await asyncio.sleep(_VERDICT_LOOK_S)
            except RayActorError:
                raise LostError(await self._loss()) from None
            except TimeoutError:
                reason = f"it did not answer within {timeout_s:.0f} s ({part})"
                raise LostError(f"node {self._rank} was lost on {self._host}: {reason}") from None
            except RayError as error:
                raise LostError(f"node {self._rank} failed on {self._host} ({part}): {_cause(error)}") from None

    async def _loss(self) -> str:
        if await self._is_in_cluster():
            return f"node {self._rank} was lost: its Ray worker on {self._host} ended"
        return f"node {self._rank} was lost: its machine {self._host} left the Ray cluster"

    async def _is_in_cluster(self) -> bool:
        nodes = await asyncio.to_thread(ray.nodes)
        return any(node["Alive"] for node in nodes if node["NodeID"] == self._ray_node)


class RayNode:
    """Satisfies `driver_parts.Node`."""

    def __init__(self, actor: Any, whereabouts: Whereabouts) -> None:
        self._actor = actor
        self._whereabouts = whereabouts

    async def prepare(self, timeout_s: float = _CALL_TIMEOUT_S) -> str:
        address: str = await self._whereabouts.of("its directories", self._actor.prepare.remote, timeout_s)
        return address

    async def check_image(self) -> None:
        timeout_s = PULL_TIMEOUT_S + _CALL_TIMEOUT_S
        await self._whereabouts.of("its image", self._actor.check_image.remote, timeout_s)

    async def load(self) -> None:
        await self._whereabouts.of("loading checkpoints", self._actor.load.remote, None)

    async def unpack(self) -> None:
        """Has no time limit."""
        await self._whereabouts.of("its artifacts", self._actor.unpack.remote, None)

    async def fetch(self, environment: JobEnvironment) -> None:
        """Has no time limit."""
        await self._whereabouts.of("its weights", lambda: self._actor.fetch.remote(environment), None)

    async def start(self, start: NodeStart) -> None:
        await self._whereabouts.of("its start", lambda: self._actor.start.remote(start))

    async def progress(self, offset: int) -> Progress:
        progress: Progress = await self._whereabouts.of("its progress", lambda: self._actor.progress.remote(offset))
        return progress

    async def stop(self) -> None:
        await self._whereabouts.of("its stop", self._actor.stop.remote)

    async def clean(self) -> None:
        await self._whereabouts.of("its removal", self._actor.clean.remote)


class RayImageNode:
    """Satisfies `driver_parts.Node`: a node in an image.

    Until it starts, an actor outside of the image does what needs the machine's own files, programs and credentials.
    """

    def __init__(self, beside: RayNode, make: Callable[[], RayNode], image: str) -> None:
        self._present = beside
        self._make = make
        self._image = image
        self._inner: RayNode | None = None

    async def prepare(self) -> str:
        await self._present.prepare()
        await self._present.check_image()
        self._inner = self._make()
        try:
            return await self._inner.prepare(_IMAGE_TIMEOUT_S)
        except LostError as error:
            raise LostError(f"{error}; it was to start in the image {self._image}") from None

    async def load(self) -> None:
        await self._present.load()

    async def unpack(self) -> None:
        await self._present.unpack()

    async def fetch(self, environment: JobEnvironment) -> None:
        await self._present.fetch(environment)

    async def start(self, start: NodeStart) -> None:
        assert self._inner is not None, "prepare comes first"
        await self._inner.start(start)
        self._present = self._inner  # nobody holds the other actor any more, so Ray ends it

    async def progress(self, offset: int) -> Progress:
        return await self._present.progress(offset)

    async def stop(self) -> None:
        await self._present.stop()

    async def clean(self) -> None:
        await self._present.clean()


class RayCheckpoints:
    """Satisfies `parts.Checkpoints`. What moves files has no time limit."""

    def __init__(self, actor: Any, whereabouts: Whereabouts) -> None:
        self._actor = actor
        self._whereabouts = whereabouts

    async def restore(self, restore: Restore) -> None:
        await self._whereabouts.of("restoring a checkpoint", lambda: self._actor.restore.remote(restore), None)

    async def look(self) -> Synced:
        synced: Synced = await self._whereabouts.of("its checkpoints", self._actor.look.remote, None)
        return synced

    async def finish(self) -> Synced:
        synced: Synced = await self._whereabouts.of("its last checkpoints", self._actor.finish.remote, None)
        return synced

    async def clean(self) -> None:
        await self._whereabouts.of("removing its checkpoints", self._actor.clean.remote)


def _cause(error: RayError) -> str:
    """Return what the actor raised, without Ray's traceback."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    lines = str(cause).strip().splitlines() or [type(cause).__name__]
    return lines[-1].strip()[:_MAX_CAUSE_CHARS]
