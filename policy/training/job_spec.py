"""The specification of a training job, as control stores it and a trainer starts it.

See docs/reference/training.md#jobs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from policy.training.resources import NodeResources
from policy.training.wire import added_texts, count, members, optional_members, optional_text, text, texts

ON_STARTUP = "on_startup"
ON_FAILURE = "on_failure"
ON_DEMAND = "on_demand"
DEDICATED = "dedicated"
SPOT = "spot"
DEFAULT_CHECKPOINT_PATH = "checkpoints"


@dataclass(frozen=True, slots=True)
class SecretRef:
    """An environment variable whose value is a secret of the workspace, read when the job starts."""

    name: str


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """The moment from which a shell is offered, and for how long."""

    trigger: str
    timeout_minutes: int


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The configuration of a job; `recreate` copies it. Paths are relative to the job's own directory."""

    start_commands: tuple[str, ...]
    """`/bin/sh -c` lines. Each node runs them in this order; the first that exits non-zero fails the node."""
    resources: NodeResources
    node_count: int = 1
    environment: Mapping[str, str | SecretRef] = field(default_factory=dict)
    working_directory: str | None = None
    checkpoint_path: str | None = None
    """None: checkpoints are not synced, but the job has a directory for them nevertheless."""
    base_image: str | None = None
    session: SessionSpec | None = None
    artifacts: tuple[str, ...] = ()
    """The `s3_key`s of the workspace's uploads that are unpacked before the first command runs."""

    def to_wire(self) -> dict[str, Any]:
        session = self.session
        return {
            "start_commands": list(self.start_commands),
            "resources": self.resources.to_wire(),
            "node_count": self.node_count,
            "environment": {name: _value_to_wire(value) for name, value in self.environment.items()},
            "working_directory": self.working_directory,
            "checkpoint_path": self.checkpoint_path,
            "base_image": self.base_image,
            "session": session and {"trigger": session.trigger, "timeout_minutes": session.timeout_minutes},
            "artifacts": list(self.artifacts),
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "JobSpec":
        """The inverse of `to_wire`. Raises KeyError or TypeError that names the member if the shape is wrong."""
        session = optional_members(wire, "session")
        return cls(
            start_commands=texts(wire, "start_commands"),
            resources=NodeResources.from_wire(members(wire, "resources")),
            node_count=count(wire, "node_count"),
            environment={name: _value_from_wire(name, value) for name, value in members(wire, "environment").items()},
            working_directory=optional_text(wire, "working_directory"),
            checkpoint_path=optional_text(wire, "checkpoint_path"),
            base_image=optional_text(wire, "base_image"),
            session=None
            if session is None
            else SessionSpec(text(session, "trigger"), count(session, "timeout_minutes")),
            artifacts=added_texts(wire, "artifacts"),
        )


def _value_to_wire(value: str | SecretRef) -> str | dict[str, str]:
    return value if isinstance(value, str) else {"secret": value.name}


def _value_from_wire(name: str, value: Any) -> str | SecretRef:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("secret"), str):
        return SecretRef(value["secret"])
    raise TypeError(f"environment.{name} must be text or name a secret")
