"""The resources that processes use: the scheduler's run time, user and system time, and context switches.

CPU is the run time that the scheduler charged to all threads, in ns and with the kernel's share: the sum of
/proc/PID/task/*/schedstat, but read from the process's CPU clock, which keeps the time of threads that ended. The time
of children that ended is added when their parent has reaped them, in ticks of 10 ms, as user and system time are.
"""

import ctypes
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path

from bench.programs.processes import BenchError

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of some processes in a while. `switches`: context switches, wanted and not; NaN if a thread ended."""

    cpu_s: float
    user_s: float = 0.0
    system_s: float = 0.0
    switches: float = 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """The use of processes since they started. `switches`: by thread, because a thread takes its own along."""

    cpu_s: float
    user_s: float
    system_s: float
    switches: Mapping[int, int]

    def since(self, before: "Reading") -> Usage:
        """Return what was used between both readings. A process in `before` must be in this one too."""
        switches = sum(count - before.switches.get(thread, 0) for thread, count in self.switches.items())
        have_all = before.switches.keys() <= self.switches.keys()
        return Usage(
            self.cpu_s - before.cpu_s,
            self.user_s - before.user_s,
            self.system_s - before.system_s,
            switches if have_all else nan,
        )


class PartUsage:
    """The usage of a part that `find` names: from the start of this object until `end`.

    A process that starts meanwhile counts from its start, and one that also ends meanwhile counts once its parent, if
    it is of the part, has reaped it. The end of a process that was there at the start is an error.
    """

    def __init__(self, find: Callable[[], list[int]]) -> None:
        self._find = find
        self._pids = find()
        self._before = read(self._pids)

    def end(self) -> Usage:
        """Raises `BenchError` if a process of the part has ended."""
        return read(dict.fromkeys([*self._pids, *self._find()])).since(self._before)


def read(pids: Sequence[int] | Mapping[int, None]) -> Reading:
    """Raises `BenchError` if a process has ended."""
    cpu_s = user_s = system_s = 0.0
    switches: dict[int, int] = {}
    for pid in pids:
        try:
            user, system, reaped_user, reaped_system = _ticks(pid)
            cpu_s += _clock_s(pid) + (reaped_user + reaped_system) / _TICKS_PER_S
            switches.update(_switches(pid))
        except OSError as error:
            raise BenchError(f"process {pid} ended while it was measured") from error
        user_s += (user + reaped_user) / _TICKS_PER_S
        system_s += (system + reaped_system) / _TICKS_PER_S
    return Reading(cpu_s, user_s, system_s, switches)


def cpu_s(pids: Sequence[int]) -> float:
    """CPU seconds used so far by `pids` and by those of their children that ended."""
    return read(pids).cpu_s


def machine_cpu_s() -> float:
    """CPU seconds that the whole machine has been busy."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq = (int(value) for value in fields[:7])
    return (user + nice + system + irq + softirq) / _TICKS_PER_S


def _clock_s(pid: int) -> float:
    """The process's CPU clock: clock_getcpuclockid(3)."""
    clock = ctypes.c_int()
    error = _LIBC.clock_getcpuclockid(pid, ctypes.byref(clock))
    if error:
        raise OSError(error, os.strerror(error))
    return time.clock_gettime_ns(clock.value) / 1e9


def _ticks(pid: int) -> tuple[int, ...]:
    """utime, stime, cutime and cstime of proc_pid_stat(5), ended threads included."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return tuple(int(value) for value in after_name[11:15])


def _switches(pid: int) -> dict[int, int]:
    by_thread: dict[int, int] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            lines = (task / "status").read_text().splitlines()
        except OSError:
            continue  # the thread has ended; `since` notices
        by_thread[int(task.name)] = sum(int(line.split()[1]) for line in lines if "ctxt_switches:" in line)
    return by_thread
