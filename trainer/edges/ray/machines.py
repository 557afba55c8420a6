"""Ray's machines as hosts of training jobs.

See docs/reference/training.md#ray.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policy.training.resources import Host, NodeResources

NODE_ID_LABEL = "ray.io/node-id"
ACCELERATOR_TYPE = "accelerator_type:"
UNNAMED_GPU = "GPU"
"""The type of GPUs whose type Ray does not know."""
_MIB = 1024 * 1024
_TOKEN = 0.001
"""The share of an accelerator_type resource that Ray's own `accelerator_type=` option takes."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine of the cluster (Ray says node) that is alive, and the resources that it has in all."""

    ray_node: str
    address: str
    resources: Mapping[str, float]

    @property
    def host_name(self) -> str:
        """Return its address and the start of its id: two Ray nodes may share an address."""
        return f"{self.address}-{self.ray_node[:8]}"

    def host(self) -> Host:
        gpus = int(self.resources.get("GPU", 0))
        millicpu = int(self.resources.get("CPU", 0) * 1000)
        return Host(
            name=self.host_name,
            millicpu=millicpu,
            memory_mib=int(self.resources.get("memory", 0)) // _MIB,
            max_nodes=max(1, millicpu // 1000),
            gpus={self._gpu_type(): gpus} if gpus else {},
        )

    def _gpu_type(self) -> str:
        types = (name for name in self.resources if name.startswith(ACCELERATOR_TYPE))
        return next((name.removeprefix(ACCELERATOR_TYPE) for name in sorted(types)), UNNAMED_GPU)


def by_host_name(machines: Sequence[Machine]) -> dict[str, Machine]:
    return {machine.host_name: machine for machine in machines}


def bundle(resources: NodeResources) -> dict[str, float]:
    """Return what a node reserves on its machine."""
    reserved: dict[str, float] = {"CPU": resources.millicpu / 1000, "memory": float(resources.memory_mib * _MIB)}
    if resources.gpu_type is not None:
        reserved["GPU"] = float(resources.gpu_count)
        if resources.gpu_type != UNNAMED_GPU:
            reserved[ACCELERATOR_TYPE + resources.gpu_type] = _TOKEN
    return reserved
