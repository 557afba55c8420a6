"""Measures only on a quiet machine: a measurement is rejected and repeated if other programs used CPU during it.

A machine that stays busy ends the run.
"""

import os
import resource
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from bench.programs.processes import BenchError, cpu_s, machine_cpu_s

BUSY_SHARE = 0.10
TRIES = 5
PAUSE_S = 5
"""Pause between tries: other load often ends by itself."""

Result = TypeVar("Result")
Watched = Mapping[str, Callable[[], list[int]]]


class BusyError(BenchError):
    """The machine stayed busy; figures would be meaningless"""


def undisturbed(act: Callable[[], Result], watched: Watched) -> tuple[Result, dict[str, float]]:
    """Run `act`. Returns its result and the CPU seconds of each watched part; the parts must not overlap."""
    for turn in range(TRIES):
        if turn:
            time.sleep(PAUSE_S)
        pids = {part: find() for part, find in watched.items()}
        before, ours_s, machine_s = {part: cpu_s(pids[part]) for part in pids}, _own_s(), machine_cpu_s()
        started = time.monotonic()
        outcome = _try(act)
        took_s = time.monotonic() - started
        machine_s, ours_s = machine_cpu_s() - machine_s, _own_s() - ours_s
        used = {part: cpu_s(pids[part]) - before[part] for part in pids}
        foreign_s = machine_s - ours_s - sum(used.values())
        if foreign_s < BUSY_SHARE * took_s:
            if isinstance(outcome, BenchError):
                raise outcome
            return outcome, used
        print(f"    rejected: other programs used {foreign_s:.1f} s of CPU in {took_s:.0f} s; repeating", flush=True)
    raise BusyError(f"{BusyError.__doc__} ({TRIES} tries, each with over {BUSY_SHARE:.0%} of a core used by others)")


def _try(act: Callable[[], Result]) -> Result | BenchError:
    """Keep a failure for later: on a busy machine it means nothing (50 ms without CPU make a call a 503)."""
    try:
        return act()
    except BenchError as error:
        return error


def _own_s() -> float:
    """CPU seconds of this process and of its ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return cpu_s([os.getpid()]) + children.ru_utime + children.ru_stime
