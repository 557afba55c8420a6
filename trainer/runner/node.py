"""One node of a job, from its first command until nothing of it is left. Everything happens in one thread.

See docs/reference/training.md#how-a-node-ends.
"""

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from trainer.runner.commands import Preparation, StartError, start
from trainer.runner.launch import Launch
from trainer.runner.node_limits import NodeLimits
from trainer.runner.output_log import STDERR, STDOUT, OutputLog
from trainer.runner.processes import descendants
from trainer.runner.terminal_server import TerminalServer, shell_server

_READ_BYTES = 65_536
_READS_AT_ONCE = 16
"""The bytes of one stream before signals and limits are looked at again."""
_LOOK_AT_GROUPS_S = 0.05
_LOOK_AT_REST_S = 0.01


class Result:
    """The end of a node. `status`: of the command that ended last; negative: the signal that ended it."""

    def __init__(self, status: int = 0, reason: str | None = None, did_run: bool = True) -> None:
        self.status = status
        self.reason = reason
        self.did_run = did_run
        self.was_stopped = False


class Node:
    """Runs the commands of a launch. `stop` may be called by a signal handler."""

    def __init__(self, launch: Launch, limits: NodeLimits, output: OutputLog, wakeup: int) -> None:
        self._launch = launch
        self._limits = limits
        self._output = output
        self._wakeup = wakeup
        self._prepare = Preparation(launch, limits.cgroup)
        self._terminals = TerminalServer()
        self._pipes = {STDOUT: os.pipe(), STDERR: os.pipe()}
        self._command: int | None = None
        self._groups: set[int] = set()
        self._status: int | None = None
        self._has_children = True
        self.is_stopping = False
        self._poller = select.poll()
        self._ready: dict[int, Callable[[], object]] = {}
        self._watch_files()

    def stop(self) -> None:
        self.is_stopping = True

    def run(self, on_start: Callable[[], None]) -> Result:
        """Run the commands up to the first that fails, and end what they left. `on_start`: the first one runs."""
        result = Result()
        for command in self._launch.commands:
            result = self._run(command, on_start)
            if result.status or self.is_stopping:
                break
        if self.is_stopping:
            result.was_stopped = True
            self._terminate()
        self._kill_rest()
        if self._status is not None:
            result.status = self._status
        result.reason = self._limits.reason or result.reason
        return result

    def keep(self, seconds: float) -> None:
        """Go on after the failure, for shells, until the time is over or the node is stopped."""
        self._serve(lambda: self.is_stopping, seconds)
        self._kill_rest()

    def close(self) -> None:
        """Take the last output and remove what only a running node needs."""
        for stream, (_, writing) in self._pipes.items():
            os.close(writing)
            while self._read(stream):
                pass
        self._terminals.close()
        self._output.close()
        if self._limits.cgroup is not None:
            self._limits.cgroup.remove()

    def _run(self, command: str, on_start: Callable[[], None]) -> Result:
        if self.is_stopping:
            return Result()
        self._status = None
        try:
            self._command = start(command, self._launch, self._prepare, (self._pipes[1][1], self._pipes[2][1]))
        except StartError as error:
            return Result(126, str(error), did_run=bool(self._groups))
        self._groups.add(self._command)
        self._has_children = True
        on_start()
        self._serve(lambda: self._status is not None or self.is_stopping)
        return Result(self._status or 0)

    def _terminate(self) -> None:
        """SIGTERM to the groups of all commands; then wait for them until the grace is over."""
        for group in self._live_groups():
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)
        give_up_at = time.monotonic() + self._launch.grace_s
        while self._live_groups() and (rest_s := give_up_at - time.monotonic()) > 0:
            self._serve(lambda: False, min(_LOOK_AT_GROUPS_S, rest_s))

    def _live_groups(self) -> set[int]:
        """Return the groups in which a descendant lives: another process may have got the number of an empty group."""
        return {one.group for one in descendants(os.getpid()) if one.is_alive} & self._groups

    def _kill_rest(self) -> None:
        """Kill every descendant until there is none. This process is their reaper, so none can hide."""
        while self._has_children:
            if self._limits.cgroup is not None:
                self._limits.cgroup.kill()
            for one in descendants(os.getpid()):
                if one.is_alive:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(one.pid, signal.SIGKILL)
            self._reap()
            if self._has_children:
                self._serve(lambda: not self._has_children, _LOOK_AT_REST_S)

    def _serve(self, until: Callable[[], bool], seconds: float | None = None) -> None:
        """Handle what happens until the condition holds or the time is over."""
        end_at = None if seconds is None else time.monotonic() + seconds
        while not until():
            now = time.monotonic()
            if end_at is not None and now >= end_at:
                return
            waits = [self._limits.next_look_s(now), None if end_at is None else end_at - now]
            due = min((wait for wait in waits if wait is not None), default=None)
            for file, _ in self._poller.poll(None if due is None else due * 1000 + 1):
                self._ready[file]()
            if self._limits.is_exceeded():
                self._output.say(f"the node exceeded its {self._limits.reason}")
                self._kill_all_once()

    def _kill_all_once(self) -> None:
        for one in descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(one.pid, signal.SIGKILL)

    def _watch_files(self) -> None:
        for stream, (reading, _) in self._pipes.items():
            os.set_blocking(reading, False)
            self._ready[reading] = partial(self._read, stream)
        serve_shell = shell_server(self._launch, self._prepare)
        self._ready[self._terminals.fileno()] = lambda: self._accept(serve_shell)
        self._ready[self._wakeup] = self._reap
        for file in self._ready:
            self._poller.register(file, select.POLLIN)

    def _accept(self, serve_shell: Callable[..., None]) -> None:
        self._has_children = True
        self._terminals.accept(serve_shell)

    def _read(self, stream: int) -> bool:
        """Take a bounded part of what was printed; returns whether there may be more."""
        for _ in range(_READS_AT_ONCE):
            try:
                data = os.read(self._pipes[stream][0], _READ_BYTES)
            except BlockingIOError:
                return False
            if not data:
                return False
            self._output.feed(stream, data)
        return True

    def _reap(self) -> None:
        """Collect every child that has ended: the command, and the orphans of others."""
        with suppress(BlockingIOError):
            while os.read(self._wakeup, 512):
                pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._has_children = False
                return
            if pid == 0:
                return
            if pid == self._command:
                self._command = None
                self._status = os.waitstatus_to_exitcode(status)
