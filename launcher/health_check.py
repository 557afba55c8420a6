"""The probe of replicas: the deployment's own health check, with the path of `--health` if one is given. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

GUESSED_PATH = "/health"
"""The path to ask while a replica starts, if nobody named one. A server without it is ready when it answers at all."""


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """The `health` of a deployment, with the management API's defaults."""

    path: str = GUESSED_PATH
    interval_s: float = 5
    timeout_s: float = 2
    healthy_after: int = 1
    unhealthy_after: int = 3

    @classmethod
    def of(cls, configured: Mapping[str, Any] | None, path: str | None) -> "HealthCheck | None":
        """None: nobody named a path, so only the process is watched."""
        if configured is None and path is None:
            return None
        fields = {name: value for name, value in (configured or {}).items() if name in cls.__slots__}
        return cls(**fields | ({"path": path} if path is not None else {}))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
