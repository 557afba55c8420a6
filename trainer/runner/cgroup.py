"""A control group (version 2) for one node, where this process may make one. Otherwise see `node_limits.py`.

See docs/reference/training.md#limits.
"""

import os

_PREFIX = "tollgate-"
_CONTROLLERS = ("memory", "cpu", "pids")
_CPU_PERIOD_US = 100_000
MAX_PIDS = 4096


class Cgroup:
    """One group. `has_memory`, `has_cpu`: whether the kernel limits these; killing all of it works in any case."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.has_memory = os.path.exists(os.path.join(path, "memory.max"))
        self.has_cpu = os.path.exists(os.path.join(path, "cpu.max"))

    @classmethod
    def make(cls, name: str) -> "Cgroup | None":
        """A new group; None where that is not allowed."""
        for parent in _parents():
            path = os.path.join(parent, f"{_PREFIX}{name}-{os.getpid()}")
            for controller in _CONTROLLERS:
                _try_write(os.path.join(parent, "cgroup.subtree_control"), f"+{controller}")
            try:
                os.mkdir(path)
            except OSError:
                continue
            group = cls(path)
            if os.path.exists(os.path.join(path, "cgroup.kill")):
                return group
            group.remove()
        return None

    @classmethod
    def of_runner(cls, path: str) -> "Cgroup | None":
        """The group that a runner noted; None if the path cannot be one of `make`."""
        return cls(path) if os.path.basename(path).startswith(_PREFIX) and os.path.isabs(path) else None

    def set_limits(self, memory_bytes: int, millicpu: int) -> None:
        """Set the limits that the kernel has here. A node that exceeds its memory is killed as a whole."""
        self.has_memory = self.has_memory and self._set("memory.max", str(memory_bytes))
        self._set("memory.swap.max", "0")
        self._set("memory.oom.group", "1")
        quota = millicpu * _CPU_PERIOD_US // 1000
        self.has_cpu = self.has_cpu and self._set("cpu.max", f"{max(quota, 1000)} {_CPU_PERIOD_US}")
        self._set("pids.max", str(MAX_PIDS))

    def join(self) -> None:
        """Move this process into the group."""
        with open(os.path.join(self.path, "cgroup.procs"), "w", encoding="ascii") as file:
            file.write("0")

    def kill(self) -> None:
        self._set("cgroup.kill", "1")

    @property
    def was_out_of_memory(self) -> bool:
        try:
            with open(os.path.join(self.path, "memory.events"), encoding="ascii") as file:
                return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in file)
        except OSError:
            return False

    @property
    def cpu_ns(self) -> int | None:
        """The CPU time of all that ran in it; None if the kernel does not say."""
        try:
            with open(os.path.join(self.path, "cpu.stat"), encoding="ascii") as file:
                return next((int(line.split()[1]) * 1000 for line in file if line.startswith("usage_usec ")), None)
        except OSError:
            return None

    @property
    def memory_bytes(self) -> int | None:
        """The memory of all that is in it, its page cache included; None if the kernel does not say."""
        try:
            with open(os.path.join(self.path, "memory.current"), encoding="ascii") as file:
                return int(file.read())
        except OSError:
            return None

    @property
    def is_empty(self) -> bool:
        """Return whether no process is in it; also if it is gone."""
        try:
            with open(os.path.join(self.path, "cgroup.events"), encoding="ascii") as file:
                return "populated 0\n" in file
        except OSError:
            return True

    def remove(self) -> None:
        """Remove it. Once its processes have ended; else it stays."""
        try:
            os.rmdir(self.path)
        except OSError:
            return  # an empty directory of the kernel's is all that is left

    def _set(self, file: str, value: str) -> bool:
        return _try_write(os.path.join(self.path, file), value)


def _parents() -> list[str]:
    """Return where a group may be made: at the root if this process may write there, else below its own."""
    try:
        with open("/proc/self/mounts", encoding="utf-8") as mounts:
            root = next((line.split()[1] for line in mounts if line.split()[2] == "cgroup2"), None)
        with open("/proc/self/cgroup", encoding="utf-8") as groups:
            own = next((line.rstrip("\n")[3:] for line in groups if line.startswith("0::")), "/")
    except OSError:
        return []
    paths = [] if root is None else [root, os.path.join(root, own.lstrip("/"))]
    return [path for path in dict.fromkeys(os.path.normpath(path) for path in paths) if os.access(path, os.W_OK)]


def _try_write(path: str, value: str) -> bool:
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(value)
    except OSError:
        return False
    return True
