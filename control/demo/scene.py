"""The state that the demo's steps share: what was created so far, and how a step checks what it sees.

A step raises `StepFailedError` if the product does not do what it promises.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from control.demo.product import ManagementClient, Product
from control.demo.result_receiver import ResultReceiver
from control.demo.upstream import ScriptedUpstream

PATIENCE_S = 60.0


class StepFailedError(Exception):
    """The product did not do what the step expects."""


@dataclass
class Scene:
    """The resources that the steps have created so far."""

    product: Product
    upstreams: list[ScriptedUpstream]
    receiver: ResultReceiver
    desk: ManagementClient | None = None
    models: list[str] = field(default_factory=list)
    endpoint_id: str = ""
    groups: dict[str, str] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    sleeper: str = ""
    """The path of the deployment that a launcher starts when it is called."""
    job: str = ""
    """The path of the training job."""
    answered: int = 0
    began: str = ""

    @property
    def operator(self) -> ManagementClient:
        assert self.desk is not None, "the workspace is made first"
        return self.desk

    def key(self, team: str) -> str:
        return str(self.keys[team]["api_key"])


Step = Callable[[Scene], Awaitable[list[str]]]


def expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise StepFailedError(otherwise)


def ms_since(began: float) -> str:
    """The time since `began`, of `time.monotonic`."""
    return f"{(time.monotonic() - began) * 1000:5.0f} ms"


async def until(look: Callable[[], Awaitable[Any]], otherwise: str) -> Any:
    """Poll `look` until it returns something true. Raises StepFailedError after `PATIENCE_S`."""
    give_up_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_at:
        if result := await look():
            return result
        await asyncio.sleep(0.05)
    raise StepFailedError(otherwise)
