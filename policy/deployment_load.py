"""The load of a deployment on one proxy machine, as it reports it to control, and the only code that writes its JSON.

See docs/reference/management-api.md#load.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DeploymentLoad:
    """`queued` calls wait for a replica to have room, `parked` ones for a replica.

    `healthy` and `unhealthy` are the listed replicas' base URLs.
    """

    model_id: str
    deployment_id: str
    in_flight: int
    queued: int
    parked: int
    last_request_at_ms: int | None
    healthy: tuple[str, ...]
    unhealthy: tuple[str, ...]

    @property
    def has_calls(self) -> bool:
        return bool(self.in_flight or self.queued or self.parked)

    def to_wire(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "DeploymentLoad":
        """The inverse of `to_wire`. Raises KeyError or TypeError with the member's name if the shape is wrong."""
        for name in ("model_id", "deployment_id"):
            if not isinstance(wire[name], str):
                raise TypeError(f"{name} must be text")
        return cls(
            model_id=wire["model_id"],
            deployment_id=wire["deployment_id"],
            in_flight=_count(wire, "in_flight"),
            queued=_count(wire, "queued"),
            parked=_count(wire, "parked"),
            last_request_at_ms=None if wire["last_request_at_ms"] is None else _count(wire, "last_request_at_ms"),
            healthy=_urls(wire, "healthy"),
            unhealthy=_urls(wire, "unhealthy"),
        )


def _count(wire: Mapping[str, Any], name: str) -> int:
    count = wire[name]
    if type(count) is not int or count < 0:
        raise TypeError(f"{name} must be a whole number of at least 0")
    return count


def _urls(wire: Mapping[str, Any], name: str) -> tuple[str, ...]:
    urls = wire[name]
    if not isinstance(urls, list) or not all(isinstance(url, str) for url in urls):
        raise TypeError(f"{name} must be an array of URLs")
    return tuple(urls)
