"""Keeps control's picture of the deployment and the fleet in step: the list, the status, the load.

One task makes all calls, so changes reach control in order. While control is away, replicas keep running and nothing
is stopped; once it is back, it is told what holds then.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from launcher.demand import Load
from launcher.edges.control_client import ControlAwayError, ControlClient, ControlRefusedError
from launcher.fleet import Fleet
from launcher.health_check import HealthCheck
from launcher.statuses import FAILED, moves

LOOK_INTERVAL_S = 1.0
LOOK_INTERVAL_WITHOUT_REPLICAS_S = 5.0
"""The wake hook tells of calls; looking only finds what a hook could not, and retries."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
_ILLEGAL_MOVE = 409
Say = Callable[[str], None]


class SupersededError(Exception):
    """Another launcher has taken this deployment over: the wake URL is no longer ours."""


class Registration:
    """The fleet's side of the management API. `has_changed` is set when control should be told something."""

    def __init__(self, control: ControlClient, fleet: Fleet, wake_url: str, say: Say) -> None:
        self._control = control
        self._fleet = fleet
        self._wake_url = wake_url
        self._say = say
        self._sent_list: tuple[str, ...] | None = None
        self._control_list: tuple[str, ...] = ()  # the same list as control writes it
        self._problem = ""
        self.has_changed = asyncio.Event()
        self.health: HealthCheck | None = None

    async def begin(self, health_path: str | None) -> None:
        """Register the wake URL and the health path, and replace the list of an earlier run.

        Waits while control is away. Raises ControlRefusedError if it refuses.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                deployment = await self._control.read()
                self.health = HealthCheck.of(deployment.get("health"), health_path)
                changes: dict[str, Any] = {"wake_url": self._wake_url}
                if health_path is not None:
                    changes["health"] = self.health.to_json() if self.health else None
                self._wake_url = (await self._control.change(changes))["wake_url"]  # as control writes it
                await self._tell_list(())
                self._is_well()
                return
            except ControlAwayError as away:
                self._tell_once(f"Control is unreachable ({away}). Check --url and that control runs. Retrying.")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def run(self) -> None:
        """Keep in step for ever. Raises SupersededError."""
        pause_s = FIRST_PAUSE_S
        while True:
            self.has_changed.clear()
            if await self._keep_in_step():
                wait_s = LOOK_INTERVAL_S if self._fleet.replicas else LOOK_INTERVAL_WITHOUT_REPLICAS_S
                pause_s = FIRST_PAUSE_S
            else:
                wait_s = pause_s
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
                await asyncio.sleep(FIRST_PAUSE_S)  # a change does not shorten this one
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):  # unlike wait_for, it never swallows a cancellation
                    await self.has_changed.wait()

    async def end(self) -> None:
        """Take the wake URL back: nobody answers it from now on. Calls that come are parked for the next launcher."""
        try:
            await self._control.change({"wake_url": None})
        except (ControlAwayError, ControlRefusedError) as error:
            self._say(f"The wake URL could not be taken back ({error}). The next launcher replaces it.")

    async def _keep_in_step(self) -> bool:
        """Tell what is new and look at the rest. Returns whether control answered as expected."""
        try:
            if self._sent_list != self._fleet.wanted_list:
                await self._tell_list(self._fleet.wanted_list)
            deployment = await self._control.read()
            if deployment["wake_url"] != self._wake_url:
                raise SupersededError
            self._observe(deployment)
            if tuple(deployment["replicas"]) != self._control_list:
                self._sent_list = None  # somebody else changed it, or an older database was restored
                self.has_changed.set()
            await self._move(str(deployment["status"]))
        except ControlAwayError as away:
            self._tell_once(f"Control is unreachable ({away}). Replicas keep serving; it is told when it is back.")
            return False
        except ControlRefusedError as refused:
            self._tell_once(f"Control refused: {refused}. {remedy(refused)}")
            return False
        self._is_well()
        return True

    async def _tell_list(self, urls: tuple[str, ...]) -> None:
        answer = await self._control.list_replicas(urls)
        self._sent_list = urls
        self._control_list = tuple(answer["replicas"])
        self._fleet.listed(time.monotonic(), urls)

    async def _move(self, present: str) -> None:
        target = self._fleet.wanted_status
        for status in moves(present, target) if target else ():
            try:
                await self._control.move(status, self._fleet.error if status == FAILED else None)
            except ControlRefusedError as refused:
                if refused.status != _ILLEGAL_MOVE:
                    raise
                return  # it has moved meanwhile: the next look shows where to
            if status == FAILED:
                self._fleet.has_told_failure = True

    def _observe(self, deployment: dict[str, Any]) -> None:
        load = {name: deployment["load"].get(name) for name in Load.__slots__}
        status = str(deployment["status"])
        max_concurrency = deployment.get("max_concurrency")
        self._fleet.observe(time.monotonic(), status, Load(**load), max_concurrency)

    def _tell_once(self, problem: str) -> None:
        """One line per outage, however many calls fail."""
        if not self._problem:
            self._say(problem)
        self._problem = problem

    def _is_well(self) -> None:
        if self._problem:
            self._say("Control answers again.")
        self._problem = ""


def remedy(refused: ControlRefusedError) -> str:
    """Return what the operator can do about a refusal."""
    match refused.status:
        case 401 | 403:
            return "Set TOLLGATE_API_KEY to a key of type WORKSPACE_MANAGE_ALL of the deployment's workspace."
        case 404:
            return "Check --url, --model and --deployment."
        case 400:
            return (
                "If it is about an address that is not public: add the address or its network to TOLLGATE_EGRESS_ALLOW"
                " of control and proxies (TOLLGATE_EGRESS_ALLOW=127.0.0.0/8 for one machine) and restart them."
            )
    return "See docs/launcher.md."
