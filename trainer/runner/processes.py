"""Reads /proc: who descends from whom, how much memory processes hold, whether a pid is still the same."""

import os
from collections.abc import Iterator
from typing import NamedTuple

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_ZOMBIE = "ZX"


class Process(NamedTuple):
    """A line of /proc/<pid>/stat, as far as it matters here. `start_ticks` tells processes with the same pid apart."""

    pid: int
    state: str
    parent: int
    group: int
    start_ticks: int

    @property
    def is_alive(self) -> bool:
        return self.state not in _ZOMBIE


def process(pid: int) -> Process | None:
    """The process; None if there is none with this pid, or it has been reaped."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return Process(pid, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[19]))


def processes() -> list[Process]:
    """All of this machine."""
    candidates = (process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [one for one in candidates if one is not None]


def descendants(root: int) -> list[Process]:
    """The children of a process, their children, and so on; zombies too."""
    children: dict[int, list[Process]] = {}
    for one in processes():
        children.setdefault(one.parent, []).append(one)
    below: list[Process] = []
    parents = [root]
    while parents:
        below += (next_ones := children.pop(parents.pop(), []))
        parents += [one.pid for one in next_ones]
    return below


def tree_pids(root: int) -> Iterator[int]:
    """The pids of `descendants`, found without a look at every process of the machine. May miss some that begin now."""
    parents = [root]
    while parents:
        children = list(_children(parents.pop()))
        yield from children
        parents += children


def _children(pid: int) -> Iterator[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                yield from map(int, file.read().split())
        except (FileNotFoundError, ProcessLookupError):
            continue


def resident_bytes(pid: int) -> int:
    """The memory that the process has in RAM; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (FileNotFoundError, ProcessLookupError):
        return 0


def proportional_bytes(pid: int) -> int:
    """The same, where memory that n processes share counts for a n-th. Takes the kernel longer to tell."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            line = next((line for line in file if line.startswith(b"Pss:")), b"Pss: 0 kB")
            return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except PermissionError:
        return resident_bytes(pid)


def cpu_ns(pid: int) -> int:
    """The CPU time of the process and of the children that it has reaped; 0 if it has ended."""
    own, reaped = _cpu_ticks(pid)
    return (own + reaped) * _NS_PER_TICK


def reaped_cpu_ns(pid: int) -> int:
    """The CPU time of the children that the process has reaped."""
    return _cpu_ticks(pid)[1] * _NS_PER_TICK


def _cpu_ticks(pid: int) -> tuple[int, int]:
    """The ticks of the process itself and of its reaped children."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return (0, 0)
    user, system, reaped_user, reaped_system = map(int, stat[stat.rindex(b")") + 2 :].split()[11:15])
    return (user + system, reaped_user + reaped_system)


def boot_id() -> str:
    """Another one after each start of the machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
