"""Counts system calls with perf, in a load of its own: never while CPU is measured, because counting costs CPU.

strace would count too, but it stops the process at each call: it serves a fortieth of the calls, in other batches.
"""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.programs.processes import BenchError

_EVENT = "raw_syscalls:sys_enter"


def count_system_calls(pids: Sequence[int], load: Callable[[Sequence[str]], int], scratch: Path) -> float:
    """The system calls of `pids` per request. `load` runs its requests under a command, and returns their number.

    Raises `BenchError` if perf is missing or may not count.
    """
    if shutil.which("perf") is None:
        raise BenchError("perf is not installed; on Debian: apt-get install linux-perf")
    output = scratch / "perf.csv"
    counted = ["perf", "stat", "-x", ",", "-e", _EVENT, "-p", ",".join(map(str, pids)), "-o", str(output), "--"]
    allowed = subprocess.run([*counted, "true"], capture_output=True, text=True, timeout=20, check=False)
    if allowed.returncode:
        raise BenchError(f"perf may not count system calls (it needs root): {allowed.stderr.strip()[:200]}")
    requests = load(counted)
    return parse(output.read_text()) / requests


def parse(text: str) -> int:
    """The count in what `perf stat -x ,` wrote."""
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) > 2 and fields[2].startswith(_EVENT) and fields[0].isdigit():
            return int(fields[0])
    raise BenchError(f"perf counted no system calls: {text.strip()[-200:]}")
