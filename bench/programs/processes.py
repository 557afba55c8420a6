"""Starts programs on a chosen core, in a process group of their own, and reads their memory."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.child_process import free_ports

PROXY_CORE = 0
OTHER_CORE = 1


class BenchError(Exception):
    """The run cannot continue; the text says why."""


@dataclass(slots=True)
class Program:
    """A started program and all its descendants."""

    name: str
    popen: subprocess.Popen[bytes]

    def pids(self) -> list[int]:
        return descendants(self.popen.pid)

    def stop(self) -> None:
        """Send SIGTERM, and after ten seconds SIGKILL to the process group."""
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.popen.pid, signal.SIGKILL)
                self.popen.wait()


def treat_sigterm_as_interrupt() -> None:
    """Treat SIGTERM like Ctrl-C, so that started programs are stopped before this process ends."""

    def leave(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, leave)


def start(name: str, argv: Sequence[str], core: int, log: Path, env: Mapping[str, str] | None = None) -> Program:
    """Run `argv` pinned to `core`; its output goes to `log`."""
    with log.open("wb") as sink:
        popen = subprocess.Popen(
            ["taskset", "-c", str(core), *argv],
            stdout=sink,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    return Program(name, popen)


def descendants(pid: int) -> list[int]:
    """`pid` and all its descendants."""
    pids = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue  # the thread has ended
        for child in children:
            pids.extend(descendants(int(child)))
    return pids


def pin(pids: Sequence[int], core: int) -> None:
    """Move every thread of `pids` to `core`."""
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            os.sched_setaffinity(int(task.name), {core})


def rss_mib(pids: Sequence[int], kind: str = "Pss") -> float:
    """Memory of `pids` in MiB, shared pages divided among their users. `kind`: `Pss_Anon` leaves file pages out."""
    total_kib = 0
    for pid in pids:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total_kib += next(int(line.split()[1]) for line in rollup if line.startswith(f"{kind}:"))
    return total_kib / 1024


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def free_port() -> int:
    """A port without a listener. For several at once call `free_ports`."""
    return free_ports("127.0.0.1", 1)[0]


def wait_until(ready: Callable[[], bool], what: str, timeout_s: float = 120, every_s: float = 0.1) -> None:
    """Poll until `ready()` is true. Raises `BenchError` naming `what` after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > end:
            raise BenchError(f"{what} was not ready after {timeout_s:.0f} s")
        time.sleep(every_s)


def answers(port: int) -> bool:
    """Return whether something accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
