"""A runner as the trainer sees it: started here, or by an earlier trainer. Never mistakes another process for it.

See docs/reference/training.md#after-a-crash.
"""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

from trainer.runner.launch import Launch, runner_argv
from trainer.runner.state import LOST_RUNNER, NO_RUNNER, RunnerState, claim, read_state

_LOG = "runner.log"
_START_S = 30.0
"""The time until a runner must say that its first command has started. A job may have stopped it before it could."""


class RunnerNotStartedError(Exception):
    """The runner of a node did not come up. The message says why."""


class RunnerProcess:
    """One runner. Signals reach it by a file descriptor of the process, so a reused pid is never hit."""

    def __init__(self, state: RunnerState) -> None:
        self.state = state
        self._handle = _open(state)

    @classmethod
    async def start(cls, launch: Launch) -> "RunnerProcess":
        """Returns when its first command has started, or the node has ended. Raises RunnerNotStartedError."""
        control = Path(launch.control_directory)
        pid, word = await asyncio.to_thread(_spawn, launch, control / _LOG)
        await _wait_for_word(word)
        state = await asyncio.to_thread(read_state, launch.control_directory)
        if state is None or state.pid != pid:
            os.kill(pid, signal.SIGKILL)  # a child that nobody has reaped: the pid is its own
            await asyncio.to_thread(_reap, pid)
            raise RunnerNotStartedError(await asyncio.to_thread(_last_line, control / _LOG))
        return cls(state)

    @classmethod
    async def adopt(cls, control: Path) -> "RunnerProcess | None":
        """The runner that an earlier trainer started; None if that never happened, and then it never will."""
        if await asyncio.to_thread(claim, NO_RUNNER, str(control)):
            return None
        state = await asyncio.to_thread(read_state, str(control)) or LOST_RUNNER
        return None if state == NO_RUNNER else cls(state)

    @property
    def is_alive(self) -> bool:
        return self._handle is not None

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self._handle is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    async def ended(self) -> None:
        """Wait for its end."""
        if self._handle is None:
            return
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._handle, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(self._handle)
        self.close()
        await asyncio.to_thread(_reap, self.state.pid)

    def close(self) -> None:
        """Let go of the process, whatever it does."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _open(state: RunnerState) -> int | None:
    """A file descriptor of the process; None if it has ended. The check comes after: nothing can take its place then.

    A runner that is a child of this process and a zombie still counts: `ended` reaps it.
    """
    try:
        handle = os.pidfd_open(state.pid)
    except OSError:
        return None
    if state.is_present:
        return handle
    os.close(handle)
    return None


def _spawn(launch: Launch, log: Path) -> tuple[int, int]:
    """Start the process, in a session of its own, and give it the launch; its pid, and where it will say its word."""
    argv = runner_argv()
    launch_out, launch_in = os.pipe()
    word_out, word_in = os.pipe()
    log_file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    files = [(os.POSIX_SPAWN_DUP2, file, target) for target, file in enumerate((launch_out, word_in, log_file))]
    try:
        pid = os.posix_spawn(argv[0], argv, {}, file_actions=files, setsid=True, setsigmask=())
    except OSError as error:
        os.close(launch_in)
        os.close(word_out)
        raise RunnerNotStartedError(error.strerror) from error
    finally:
        for file in (launch_out, word_in, log_file):
            os.close(file)
    with suppress(BrokenPipeError), open(launch_in, "wb") as launching:
        launching.write(launch.to_json())
    return pid, word_out


async def _wait_for_word(word: int) -> None:
    """Wait until the runner says its word or ends, but not for ever. Closes the file."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(word, event.set)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                await event.wait()
    finally:
        loop.remove_reader(word)
        os.close(word)


def _reap(pid: int) -> None:
    """Collect a child that has ended. An earlier trainer's child has been reaped by init."""
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return lines[-1][:300] if lines else "its runner ended at once"
