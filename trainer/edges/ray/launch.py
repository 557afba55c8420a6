"""The file that the trainer gives to the driver of one attempt, in the job's `working_dir`.

It holds no secrets: the driver spends the environment token at control, and a token can be spent once.
See docs/reference/training.md#ray.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from policy.training.reports import Claimed
from policy.training.wire import count, members, optional_text, text, texts
from trainer.settings import WeightsTerms

FILE_NAME = "launch.json"


@dataclass(frozen=True, slots=True)
class RayLaunch:
    """One attempt and where it runs: node `rank` on the Ray node `ray_nodes[rank]`, which is the host `hosts[rank]`."""

    job: Claimed
    hosts: tuple[str, ...]
    ray_nodes: tuple[str, ...]
    control_url: str
    directory: str
    """The directory of the nodes' files on each Ray machine."""
    checkpoint_store: str
    checkpoint_max_bytes: int
    stop_grace_s: float
    version: str
    weights: WeightsTerms
    weights_max_bytes: int
    image: str | None = None
    """The image that the nodes run in, by its full name. None: the machines' own programs."""

    def to_wire(self) -> dict[str, Any]:
        """Write the launch without the environment: the driver gets all of it from control."""
        job = replace(self.job, spec=replace(self.job.spec, environment={}))
        return {
            "job": job.to_wire(),
            "hosts": list(self.hosts),
            "ray_nodes": list(self.ray_nodes),
            "control_url": self.control_url,
            "directory": self.directory,
            "checkpoint_store": self.checkpoint_store,
            "checkpoint_max_bytes": self.checkpoint_max_bytes,
            "stop_grace_s": self.stop_grace_s,
            "version": self.version,
            "weights": self.weights.to_wire(),
            "weights_max_bytes": self.weights_max_bytes,
            "image": self.image,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "RayLaunch":
        return cls(
            job=Claimed.from_wire(wire["job"]),
            hosts=texts(wire, "hosts"),
            ray_nodes=texts(wire, "ray_nodes"),
            control_url=text(wire, "control_url"),
            directory=text(wire, "directory"),
            checkpoint_store=text(wire, "checkpoint_store"),
            checkpoint_max_bytes=count(wire, "checkpoint_max_bytes"),
            stop_grace_s=float(wire["stop_grace_s"]),
            version=text(wire, "version"),
            weights=WeightsTerms.from_wire(members(wire, "weights")),
            weights_max_bytes=count(wire, "weights_max_bytes"),
            image=optional_text(wire, "image"),
        )


def own_version() -> str:
    """The version of Tollgate that is installed here."""
    return version("tollgate")
