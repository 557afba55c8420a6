"""Measures on a quiet machine: a measurement is rejected and repeated if other programs used CPU during it.

A machine that stays busy ends the run, unless it may be shared: then every measurement counts, and the report says how
much others used. CPU of interleaved rounds can be compared beside moderate other load; latencies cannot.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from bench.programs.processes import BenchError
from bench.usage import PartUsage, Usage, cpu_s, machine_cpu_s

BUSY_SHARE = 0.10
TRIES = 5
PAUSE_S = 5
"""Pause between tries: other load often ends by itself."""

Result = TypeVar("Result")
Watched = Mapping[str, Callable[[], list[int]]]


class BusyError(BenchError):
    """The machine stayed busy; figures would be meaningless"""


@dataclass(slots=True)
class Machine:
    """The machine of the run. `foreign_shares`: of a core, used by other programs during each accepted measurement."""

    may_be_shared: bool = False
    foreign_shares: list[float] = field(default_factory=list)

    def undisturbed(self, act: Callable[[], Result], watched: Watched) -> tuple[Result, dict[str, Usage]]:
        """Run `act`. Returns its result and the usage of each watched part; the parts must not overlap."""
        for turn in range(TRIES):
            if turn:
                time.sleep(PAUSE_S)
            outcome, usage, share = _measure(act, watched)
            is_quiet = share < BUSY_SHARE
            if isinstance(outcome, BenchError):
                if is_quiet:
                    raise outcome
            elif is_quiet or self.may_be_shared:
                self.foreign_shares.append(share)
                return outcome, usage
            print(f"    rejected: other programs used {share:.0%} of a core; repeating", flush=True)
        raise BusyError(
            f"{BusyError.__doc__} ({TRIES} tries, each with over {BUSY_SHARE:.0%} of a core used by others)"
        )


def _measure(act: Callable[[], Result], watched: Watched) -> tuple[Result | BenchError, dict[str, Usage], float]:
    """The outcome, the usage by part, and the share of a core that other programs used."""
    ours_s = cpu_s([os.getpid()])
    machine_s = machine_cpu_s()
    start_s = time.monotonic()
    parts = {name: PartUsage(find) for name, find in watched.items()}
    outcome = _try(act)
    usages = {name: part.end() for name, part in parts.items()}
    took_s = time.monotonic() - start_s
    machine_s = machine_cpu_s() - machine_s
    ours_s = cpu_s([os.getpid()]) - ours_s
    foreign_s = machine_s - ours_s - sum(usage.cpu_s for usage in usages.values())
    return outcome, usages, foreign_s / took_s


def _try(act: Callable[[], Result]) -> Result | BenchError:
    """Keep a failure for later: on a busy machine it means nothing (50 ms without CPU make a call a 503)."""
    try:
        return act()
    except BenchError as error:
        return error
