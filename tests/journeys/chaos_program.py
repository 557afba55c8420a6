"""The command line of the chaos programs, and helpers that pause and kill processes."""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. `seconds`: how long processes are killed, without the time to settle.

    `network`: a key of `tests.journeys.networks.NETWORKS`.
    """

    seconds: float
    seed: int
    settings: dict[str, str] = field(default_factory=dict)
    network: str = "direct"


Run = Callable[[Path, Plan, Say], Coroutine[Any, Any, list[str]]]
"""Runs a plan in a directory; returns the faults."""


def send(pids: Sequence[int], number: int) -> None:
    """Send a signal. The processes may be dead."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def paused(pids: Sequence[int]) -> Iterator[None]:
    send(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        send(pids, signal.SIGCONT)


def main(run: Run, description: str, *, name: str, counted: str) -> int:
    """Run a program as the command line says, and print its verdict. Returns the exit status, 0 without faults.

    `name`: of the directory, which is kept if there are faults. `counted`: what it accounts for, one of them.
    """
    options = _options(description)
    start_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - start_s:7.1f} s  {text}", flush=True)

    say(f"seed {options.seed}")
    directory = Path(tempfile.mkdtemp(prefix=f"tollgate-{name}-"))
    settings = dict(one.split("=", 1) for one in options.set)
    faults = asyncio.run(run(directory, Plan(options.minutes * 60, options.seed, settings), say))
    for fault in faults:
        say("FAULT " + fault)
    if faults:
        say(f"{len(faults)} faults; the product's files are in {directory}")
        return 1
    shutil.rmtree(directory)
    say(f"every {counted} accounted for")
    return 0


def _options(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the product")
    return parser.parse_args()
