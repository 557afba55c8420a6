"""The operator's flags on the command line. Pure values."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from runtime.tls.pinned import PeerTls

DEFAULT_MAX_REPLICAS = 1
DEFAULT_IDLE_TIMEOUT_S = 300.0
DEFAULT_START_TIMEOUT_S = 1200.0
"""Calls are parked for that long by default, so nobody waits for a replica that takes longer."""
PORT_PLACEHOLDER = "{port}"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `tollgate launcher`. `health` None: the path of the deployment's own health check, if it has one.

    `host` None: the local address of the route to control. The key is in no representation, so it reaches no log.
    """

    url: str
    api_key: str = field(repr=False)
    model_id: str
    deployment_id: str
    command: Sequence[str] = field(repr=False)
    port: int = 0
    host: str | None = None
    max_replicas: int = DEFAULT_MAX_REPLICAS
    idle_timeout_s: float = DEFAULT_IDLE_TIMEOUT_S
    start_timeout_s: float = DEFAULT_START_TIMEOUT_S
    drain_timeout_s: float = 25.0
    health: str | None = None
    tls: PeerTls = True
    """The check of the management API's certificate."""


def argv_for(command: Sequence[str], port: int) -> list[str]:
    """The command with the port in place of each `{port}`."""
    return [word.replace(PORT_PLACEHOLDER, str(port)) for word in command]
