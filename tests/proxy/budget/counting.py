"""Counts what a governed call costs on canned wires. `python -m tests.proxy.budget.counting` prints all of it."""

import sys
import sysconfig
import tempfile
from collections import Counter
from pathlib import Path
from shutil import which
from subprocess import run
from types import FrameType

from tests.proxy.budget.canned_worker import CALLERS, REQUEST, canned_worker

ROOT = Path(__file__).parents[3]
WARM_CALLS, COUNTED_CALLS = 40, 200
PARTS = {
    "front door": ("proxy/edges/http/",),
    "pipeline": ("proxy/pipeline.py", "proxy/exchange.py", "proxy/answer_head.py", "proxy/capacity/"),
    "receive": ("proxy/stages/receive.py", "proxy/json_text/", "proxy/http_rules/guarded_members.py"),
    "authenticate and route": (
        *("proxy/stages/authenticate.py", "proxy/stages/route.py", "proxy/edges/policy/", "policy/credentials.py"),
        "policy/snapshot.py",
    ),
    "admit": ("proxy/stages/admit.py", "proxy/edges/redis/", "policy/limits/", "runtime/redis/"),
    "dispatch": ("proxy/stages/dispatch.py", "proxy/http_rules/"),
    "dialects": ("proxy/dialects/",),
    "upstream": ("proxy/edges/upstream/",),
    "relay": ("proxy/stages/relay.py", "proxy/progress_clock.py"),
    "journal": ("proxy/edges/journal/", "proxy/accounting/", "policy/billing.py"),
    "settle and report": ("proxy/stages/settle.py", "proxy/edges/telemetry/"),
    "making values": ("<string>",),  # the methods that dataclasses and named tuples generate
}
"""Where each part's code is. A path counts for the first part that names it."""
DEBIANS_PYTHON = Path("/usr/bin/python3")
"""Built with optimisations, as the image's is (decision 0028). Other builds take other numbers of instructions."""

Function = tuple[str, str]
"""A path below the root, and a function's qualified name."""


def calls_by_function(request: bytes = REQUEST) -> dict[Function, float]:
    """Python calls per governed call, of the event loop's thread: a coroutine counts once for each step."""
    counted: Counter[Function] = Counter()
    root = f"{ROOT}/"

    def count(frame: FrameType, event: str, _arg: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        counted[code.co_filename.removeprefix(root), code.co_qualname] += 1

    with canned_worker() as (runner, worker):
        runner.run(worker.serve(WARM_CALLS, request))
        sys.setprofile(count)
        try:
            runner.run(worker.serve(COUNTED_CALLS, request))
        finally:
            sys.setprofile(None)
    served = CALLERS * COUNTED_CALLS
    return {function: calls / served for function, calls in counted.items() if not function[0].startswith("tests/")}


def part_of(path: str) -> str:
    """The part that a file belongs to."""
    for part, places in PARTS.items():
        if path.startswith(places):
            return part
    return "other"


def by_part(calls: dict[Function, float]) -> dict[str, float]:
    """The same calls, by part, in the order of `PARTS`."""
    sums = dict.fromkeys((*PARTS, "other"), 0.0)
    for (path, _name), count in calls.items():
        sums[part_of(path)] += count
    return sums


def missing_tool() -> str:
    """What cannot be run here; "" if instructions can be counted."""
    if which("valgrind") is None:
        return "valgrind (Debian package valgrind)"
    if not DEBIANS_PYTHON.exists():
        return f"{DEBIANS_PYTHON} (Debian package python3)"
    said = run([DEBIANS_PYTHON, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, check=True)
    return "" if said.stdout.split() == b"3 11".split() == _own_version() else "Python 3.11, here and in /usr/bin"


def _own_version() -> list[bytes]:
    return [b"%d" % number for number in sys.version_info[:2]]


def instructions(few: int = 50, many: int = 100, *more: str) -> float:
    """User-space instructions per governed call, of all threads, canned wires included. `more`: other arguments.

    Counted by valgrind on Debian's Python with the packages of this environment, as the difference of two runs.
    """
    argv = [str(DEBIANS_PYTHON), "-m", "compileall", "-q", *("proxy", "policy", "runtime", "tests/proxy/budget")]
    run(argv, check=True, cwd=ROOT)  # else the first run would also compile what has changed
    return (_instructions_of(many, *more) - _instructions_of(few, *more)) / (CALLERS * (many - few))


def _instructions_of(calls: int, *more: str) -> int:
    packages = sysconfig.get_path("purelib")
    with tempfile.TemporaryDirectory() as scratch:
        argv = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={scratch}/out", f"--log-file={scratch}/log"]
        argv += [str(DEBIANS_PYTHON), "-m", "tests.proxy.budget.canned_worker", str(calls), *more]
        env = {"PYTHONPATH": f"{ROOT}:{packages}", "PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0"}
        run(argv, check=True, cwd=ROOT, env=env, timeout=300)
        line = next(line for line in Path(scratch, "out").read_text().splitlines() if line.startswith("totals:"))
    return int(line.split()[1])


def main() -> None:
    calls = calls_by_function()
    for (path, name), count in sorted(calls.items()):
        if count >= 0.05:
            print(f"{count:7.2f}  {path}  {name}")
    print()
    print(report(calls))
    print(missing_tool() or f"{instructions():12,.0f}  instructions")


def report(calls: dict[Function, float]) -> str:
    """The budget by part, a line each."""
    lines = [f"{count:7.1f}  {part}" for part, count in by_part(calls).items() if count]
    return "\n".join([*lines, f"{sum(calls.values()):7.1f}  Python calls per governed call"])


if __name__ == "__main__":
    main()
