"""Wires the launcher together and runs it until a signal.

The decisions are in `fleet`, what control is told in `registration`.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import quote

from launcher.edges.control_client import ControlClient, ControlRefusedError, local_address
from launcher.edges.health_probe import HealthProbe
from launcher.edges.log_sender import LogSender
from launcher.edges.process_guard import ProcessGuard
from launcher.edges.wake_hook import WakeHook, base_url
from launcher.fleet import Action, Fleet, Kill, Start, Terminate
from launcher.options import PORT_PLACEHOLDER, Options
from launcher.registration import Registration, SupersededError, remedy
from launcher.replica_runner import ReplicaRunner, Surroundings
from runtime.background import is_set_within
from runtime.child_process import free_ports
from runtime.log_lines import cause_of

TICK_S = 0.25
ROUTE_INTERVAL_S = 1.0
GOODBYE_S = 3.0
"""The time that control may take for the last changes and log lines."""
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Say = Callable[[str], None]


class LauncherError(Exception):
    """The launcher cannot do its work; the message says why and what to do."""


async def run(options: Options, say: Say, announce: Say) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP. `announce` gets the `ready` line, `say` the progress."""
    stop_requested = _stop_event()
    host = options.host or await _route_to_control(options.url, say, stop_requested)
    if host is None:  # a signal came first
        return
    launcher = Launcher(options, host, say)
    try:
        await launcher.listen()
        if not await launcher.begin(stop_requested):
            return
        announce(f"ready hook={launcher.hook.shown_url} model={options.model_id} deployment={options.deployment_id}")
        await launcher.serve(stop_requested)
    finally:
        await launcher.close()
        say("stopped")


class Launcher:
    """One run: the hook, the fleet, its replicas and the registration."""

    def __init__(self, options: Options, host: str, say: Say) -> None:
        self._options = options
        self._host = host
        self._say = say
        self._fleet = Fleet(options)
        self._changed = asyncio.Event()
        self._runners: dict[int, ReplicaRunner] = {}
        self._tasks = asyncio.TaskGroup()
        self._is_superseded = False
        self._probe = HealthProbe()
        self.hook = WakeHook(self._wake)
        path = f"/v1/models/{quote(options.model_id, safe='')}/deployments/{quote(options.deployment_id, safe='')}"
        self._control = ControlClient(options.url, options.api_key, path, options.tls)
        self._log = LogSender(self._control, say, (options.api_key, self.hook.path_secret))

    async def listen(self) -> None:
        """Start the guard and the hook. LauncherError if the hook's port is taken."""
        self._guard = await ProcessGuard.start()
        try:
            await self.hook.start(self._host, self._options.port)
        except OSError as error:
            raise LauncherError(
                f"cannot listen on {self._host} port {self._options.port}: {error.strerror}. Choose another --port,"
                " and a --host of this machine"
            ) from None

    async def begin(self, stop_requested: asyncio.Event) -> bool:
        """Register. False if a signal came first; LauncherError if control refuses."""
        if not any(PORT_PLACEHOLDER in word for word in self._options.command):
            self._say(f"COMMAND has no {PORT_PLACEHOLDER}: replicas have to listen on the port in their variable PORT")
        self._registration = Registration(self._control, self._fleet, self.hook.url, self._say)
        try:
            has_begun = await _unless(stop_requested, self._registration.begin(self._options.health))
        except ControlRefusedError as refused:
            raise LauncherError(f"control refused: {refused}. {remedy(refused)}") from None
        health = self._registration.health
        log = self._log
        self._around = Surroundings(
            self._options, self._fleet, self._probe, self._guard, health, log, self._say, self._change
        )
        return has_begun

    async def serve(self, stop_requested: asyncio.Event) -> None:
        """Act on the fleet's decisions until it is stopped. LauncherError if another launcher takes over."""
        async with self._tasks as tasks:
            helping = [
                tasks.create_task(self._keep_registered()),
                tasks.create_task(self._log.run()),
                tasks.create_task(self._stop_on(stop_requested)),
            ]
            while not self._fleet.is_over:
                self._act()
                await is_set_within(self._changed, TICK_S)
                self._changed.clear()
            for task in helping:
                task.cancel()
        await self._say_goodbye()
        if self._is_superseded:
            raise LauncherError(
                "another launcher has taken this deployment over (its wake_url has changed). Run one launcher for each"
                " deployment; --max-replicas starts several replicas"
            )

    async def close(self) -> None:
        await self._guard.close()
        await self.hook.close()
        await self._probe.close()
        await self._control.close()

    async def _keep_registered(self) -> None:
        try:
            await self._registration.run()
        except SupersededError:
            self._is_superseded = True
            self._stop("another launcher has taken over")

    async def _stop_on(self, stop_requested: asyncio.Event) -> None:
        await stop_requested.wait()
        self._stop("stopping")
        stop_requested.clear()
        await stop_requested.wait()
        self._say("second signal: stopping replicas without draining")
        self._fleet.stop(time.monotonic(), 0.0)
        self._changed.set()

    def _stop(self, why: str) -> None:
        self._say(f"{why}: draining replicas (at most {self._options.drain_timeout_s:.0f} s)")
        self._fleet.stop(time.monotonic(), self._options.drain_timeout_s)
        self._change()

    async def _say_goodbye(self) -> None:
        """Send what control should still know, if it answers in time. A later launcher's entries stay."""
        try:
            async with asyncio.timeout(GOODBYE_S):
                await self._log.flush()
                if not self._is_superseded:
                    await self._registration.end()
        except TimeoutError:
            self._say("control did not answer in time; the next launcher replaces what is registered")

    def _wake(self) -> None:
        if not self._fleet.replicas:
            self._say("woken")
        self._fleet.wake(time.monotonic())
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._registration.has_changed.set()

    def _act(self) -> None:
        """Do what the fleet decides, and let control know of what changed."""
        listed = set(self._fleet.wanted_list)
        status = self._fleet.wanted_status
        for action in self._fleet.actions(time.monotonic()):
            self._perform(action)
        for url in listed.difference(self._fleet.wanted_list):
            self._say(f"replica {url} leaves the list and finishes its calls")
        if (listed, status) != (set(self._fleet.wanted_list), self._fleet.wanted_status):
            self._registration.has_changed.set()

    def _perform(self, action: Action) -> None:
        match action:
            case Start(number):
                self._start(number)
            case Terminate(number):
                self._runners[number].terminate()
            case Kill(number, why):
                self._runners[number].kill(why)

    def _start(self, number: int) -> None:
        port = free_ports(self._host, 1, excluded=self._fleet.ports)[0]
        replica = self._fleet.replicas[number]
        replica.url = base_url(self._host, port)
        replica.port = port
        runner = self._runners[number] = ReplicaRunner(self._around, number, replica.url)
        task = self._tasks.create_task(runner.run(port))
        task.add_done_callback(lambda _: self._runners.pop(number))


async def _route_to_control(url: str, say: Say, stop_requested: asyncio.Event) -> str | None:
    """Our address as control sees it on a plain route. Waits for one; None if a signal comes first."""
    has_told = False
    while not stop_requested.is_set():
        try:
            return await local_address(url)
        except OSError as error:
            if not has_told:
                say(f"No route to control ({cause_of(error)}). Check --url and the network. Retrying.")
            has_told = True
        await is_set_within(stop_requested, ROUTE_INTERVAL_S)
    return None


def _stop_event() -> asyncio.Event:
    event = asyncio.Event()
    for number in _STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, event.set)
    return event


async def _unless(stop_requested: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work. False if the event came first; the work is then cancelled."""
    work_task = asyncio.create_task(work)
    stop_wait = asyncio.create_task(stop_requested.wait())
    await asyncio.wait({work_task, stop_wait}, return_when=asyncio.FIRST_COMPLETED)
    is_done = work_task.done()
    for task in (work_task, stop_wait):
        task.cancel()
    results = await asyncio.gather(work_task, stop_wait, return_exceptions=True)
    if is_done and isinstance(results[0], Exception):
        raise results[0]
    return is_done
