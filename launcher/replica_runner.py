"""One replica from start to end: its process, its probes, its output. It reports to the fleet and decides nothing."""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from launcher.edges.health_probe import Health, HealthProbe
from launcher.edges.log_sender import LogSender
from launcher.edges.process_guard import ProcessGuard
from launcher.edges.replica_process import ReplicaProcess, environment_for
from launcher.exits import how_it_ended
from launcher.fleet import Fleet
from launcher.health_check import GUESSED_PATH, HealthCheck
from launcher.options import Options, argv_for
from launcher.output_lines import LineCutter

START_PROBE_INTERVAL_S = 0.25
START_PROBE_TIMEOUT_S = 2.0
PROGRESS_AFTER_S = (5.0, 15.0, 30.0, 60.0)
PROGRESS_EVERY_S = 60.0
_SHOWN_LAST_LINES = 5
_SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The values that all replicas share. `changed` is called after each event that the fleet was told."""

    options: Options
    fleet: Fleet
    probe: HealthProbe
    guard: ProcessGuard
    health: HealthCheck | None
    log: LogSender
    say: Callable[[str], None]
    changed: Callable[[], None]


class ReplicaRunner:
    """Runs the replica with this number at this URL. `run` ends when the process has ended."""

    def __init__(self, around: Surroundings, number: int, url: str) -> None:
        self._around = around
        self._number = number
        self._url = url
        self._process: ReplicaProcess | None = None
        self._signal = ""  # "terminate" or "kill", when asked for before the process exists
        self._why = ""  # of a kill: why it was killed
        self._cutter = LineCutter()
        self._last_lines: deque[str] = deque(maxlen=_SHOWN_LAST_LINES)
        self._is_ready = False

    def terminate(self) -> None:
        self._send("terminate")

    def kill(self, why: str) -> None:
        self._why = self._why or why
        self._send("kill")

    async def run(self, port: int) -> None:
        """Start the process, and report its readiness and its end."""
        options = self._around.options
        try:
            argv = argv_for(options.command, port)
            environment = environment_for(os.environ, port)
            self._process = await ReplicaProcess.start(argv, environment, self._receive)
        except OSError as error:
            self._end(f"could not be started: {error.strerror}. Check COMMAND")
            return
        self._around.guard.watch(self._process.pid)
        self._say(f"started (pid {self._process.pid}); waiting until it is healthy")
        if self._signal:
            self._send(self._signal)
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._watch())
            status = await self._process.wait()
            watch.cancel()
        self._around.guard.forget(self._process.pid)
        self._receive_lines(self._cutter.flush())
        self._end(self._why or how_it_ended(status))

    def _send(self, signal: str) -> None:
        self._signal = signal
        if self._process is not None:
            (self._process.kill if signal == "kill" else self._process.terminate)()

    async def _watch(self) -> None:
        await self._until_ready()
        self._is_ready = True
        self._around.fleet.became_ready(self._number, time.monotonic())
        self._around.changed()
        if self._around.health is not None:
            self.kill(await self._until_hung(self._around.health))

    async def _until_ready(self) -> None:
        began = time.monotonic()
        last_log_s = 0.0
        while True:
            probe = await self._around.probe.ask(self._health_url, START_PROBE_TIMEOUT_S)
            waited_s = time.monotonic() - began
            if probe.health is Health.GOOD or (probe.health is Health.NO_PATH and self._around.health is None):
                self._say(f"healthy after {waited_s:.1f} s")
                return
            if waited_s >= next_progress_s(last_log_s):
                last_log_s = next_progress_s(last_log_s)
                self._say(f"not healthy yet after {waited_s:.0f} s: {self._health_url} {probe.what}{self._last_line()}")
            await asyncio.sleep(START_PROBE_INTERVAL_S)

    async def _until_hung(self, health: HealthCheck) -> str:
        """Returns why it is to be killed."""
        failures = 0
        what = ""
        while failures < health.unhealthy_after:
            await asyncio.sleep(health.interval_s)
            probe = await self._around.probe.ask(self._health_url, health.timeout_s)
            what = probe.what
            failures = 0 if probe.health is Health.GOOD else failures + 1
        return f"was killed: it failed {failures} health checks in a row (the last time it {what})"

    @property
    def _health_url(self) -> str:
        health = self._around.health
        return self._url + (health.path if health else GUESSED_PATH)

    def _receive(self, data: bytes) -> None:
        self._receive_lines(self._cutter.feed(data, time.monotonic()))

    def _receive_lines(self, lines: list[str]) -> None:
        for text in lines:
            self._last_lines.append(text)
            self._around.log.add(text, self._url)

    def _end(self, why: str) -> None:
        """Tell the fleet; a failure also goes to the deployment's log."""
        if not self._is_ready:
            why = f"{why} before it was healthy{self._last_line()}"
        if self._around.fleet.ended(self._number, time.monotonic(), why):
            self._say(why)
            self._around.log.add(f"The replica {why}", self._url, "ERROR")
        else:
            self._say("stopped")
        self._around.changed()

    def _last_line(self) -> str:
        return f"; its last line: {self._last_lines[-1][:_SHOWN_CHARS]}" if self._last_lines else ""

    def _say(self, text: str) -> None:
        self._around.say(f"replica {self._number} ({self._url}): {text}")


def next_progress_s(told_s: float) -> float:
    """Return when to report a slow start again."""
    return next((at for at in PROGRESS_AFTER_S if at > told_s), told_s + PROGRESS_EVERY_S)
