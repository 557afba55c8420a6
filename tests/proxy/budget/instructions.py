"""Prints the instructions of a governed call, for judging one change: `python -m tests.proxy.budget.instructions`.

An instrument, not a test: libraries choose other code by processor, and some processors count a repeated move by the
step. So only two counts of one machine can be compared. Needs valgrind, and Debian's Python 3.11, which is built with
the optimisations of the image's (docs/hot-path.md#collector-and-interpreter).
"""

import sys
import sysconfig
import tempfile
from pathlib import Path
from subprocess import run

from tests.proxy.budget.canned_worker import CALLERS
from tests.proxy.budget.counting import ROOT

PYTHON = "/usr/bin/python3"
FEW_CALLS = 50
MANY_CALLS = 100


def instructions(*prompt_times: str) -> float:
    """User-space instructions per governed call, of all threads, canned wires included: the difference of two runs.

    `prompt_times`: how often the prompt is repeated.
    """
    argv = [PYTHON, "-m", "compileall", "-q", *("proxy", "policy", "runtime", "tests/proxy/budget")]
    run(argv, check=True, cwd=ROOT)  # else the first run would also compile what has changed
    few, many = (_instructions_of(calls, *prompt_times) for calls in (FEW_CALLS, MANY_CALLS))
    return (many - few) / (CALLERS * (MANY_CALLS - FEW_CALLS))


def _instructions_of(calls: int, *more: str) -> int:
    packages = sysconfig.get_path("purelib")
    with tempfile.TemporaryDirectory() as scratch:
        argv = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={scratch}/out", f"--log-file={scratch}/log"]
        argv += [PYTHON, "-m", "tests.proxy.budget.canned_worker", str(calls), *more]
        env = {"PYTHONPATH": f"{ROOT}:{packages}", "PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0"}
        run(argv, check=True, cwd=ROOT, env=env, timeout=300)
        line = next(line for line in Path(scratch, "out").read_text().splitlines() if line.startswith("totals:"))
    return int(line.split()[1])


if __name__ == "__main__":
    print(f"{instructions(*sys.argv[1:]):,.0f} instructions per governed call")
