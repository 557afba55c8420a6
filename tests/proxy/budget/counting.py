"""Counts what a governed call costs on canned wires. `python -m tests.proxy.budget.counting` prints all of it."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from policy.snapshot import Row
from proxy.edges.telemetry.gen_ai_counts import GenAiCounts
from tests.proxy.budget.canned_worker import CALLERS, REQUEST, canned_worker

ROOT = Path(__file__).parents[3]
WARM_CALLS = 40
COUNTED_CALLS = 100
PARTS = {
    "front door": ("proxy/edges/http/",),
    "pipeline": ("proxy/pipeline.py", "proxy/exchange.py", "proxy/answer_head.py", "proxy/capacity/"),
    "receive": ("proxy/stages/receive.py", "proxy/json_text/", "proxy/http_rules/guarded_members.py"),
    "authenticate and route": (
        *("proxy/stages/authenticate.py", "proxy/stages/route.py", "proxy/edges/policy/", "policy/credentials.py"),
        "policy/snapshot.py",
    ),
    "admit": (
        *("proxy/stages/admit.py", "proxy/stages/spend_admission.py", "proxy/edges/redis/", "policy/limits/"),
        *("policy/spend/", "runtime/redis/"),
    ),
    "dispatch": ("proxy/stages/dispatch.py", "proxy/http_rules/"),
    "dialects": ("proxy/dialects/",),
    "upstream": ("proxy/edges/upstream/",),
    "relay": ("proxy/stages/relay.py", "proxy/progress_clock.py"),
    "journal": ("proxy/edges/journal/", "proxy/accounting/", "policy/billing.py"),
    "settle and report": ("proxy/stages/settle.py", "proxy/edges/telemetry/"),
    "making values": ("<string>",),  # the methods that dataclasses and named tuples generate
}
"""The code of each part, by path. A path counts for the first part that names it."""

Function = tuple[str, str]
"""A path below the root, and a function's qualified name."""


@dataclass(slots=True)
class Counts:
    """The interpreter's work by Python function. No figure depends on the processor or on other load."""

    calls: Counter[Function] = field(default_factory=Counter)
    """Calls of the function. A coroutine counts once for each step."""
    c_calls: Counter[Function] = field(default_factory=Counter)
    """Calls that the function makes of C functions: each may read or copy all of a body."""
    bytecodes: Counter[Function] = field(default_factory=Counter)
    """Bytecodes that the function executes."""

    def per(self, calls: int) -> "Spent":
        """The counts of one call out of `calls`."""
        return Spent(*({name: count / calls for name, count in counted.items()} for counted in self._all()))

    def _all(self) -> Iterator[Counter[Function]]:
        yield from (self.calls, self.c_calls, self.bytecodes)


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of one call by function: see `Counts`."""

    calls: dict[Function, float]
    c_calls: dict[Function, float]
    bytecodes: dict[Function, float]


class Functions:
    """Names the functions of the product's own code. Those of tests and libraries have no name here."""

    def __init__(self) -> None:
        self._names: dict[CodeType, Function | None] = {}

    def of(self, frame: FrameType) -> Function | None:
        code = frame.f_code
        if code not in self._names:
            path = code.co_filename.removeprefix(f"{ROOT}/")
            is_ours = path != code.co_filename and not path.startswith((".", "tests/"))
            self._names[code] = (path, code.co_qualname) if is_ours or path.startswith("<") else None
        return self._names[code]


@contextmanager
def counting_calls(counts: Counts) -> Iterator[None]:
    """Count the calls that this thread makes in the product's own code."""
    functions = Functions()

    def count(frame: FrameType, event: str, _arg: object) -> None:
        if event in ("call", "c_call") and (function := functions.of(frame)) is not None:
            (counts.calls if event == "call" else counts.c_calls)[function] += 1

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


@contextmanager
def counting_bytecodes(counts: Counts) -> Iterator[None]:
    """Count the bytecodes that this thread executes in the product's own code."""
    functions = Functions()

    def count(frame: FrameType, event: str, _arg: object) -> Callable[..., Any] | None:
        function = functions.of(frame)
        if function is None:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            counts.bytecodes[function] += 1
        return count

    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(None)


def spent_per_call(request: bytes = REQUEST, *policy: Row, gen_ai: GenAiCounts | None = None) -> Spent:
    """Count what a governed call takes of the event loop's thread, in two passes. `policy`: further rows."""
    counts = Counts()
    with canned_worker(gen_ai=gen_ai) as (runner, worker):
        worker.publish(*policy)
        runner.run(worker.serve(WARM_CALLS, request))
        for counting in (counting_calls, counting_bytecodes):
            with counting(counts):
                runner.run(worker.serve(COUNTED_CALLS, request))
    return counts.per(CALLERS * COUNTED_CALLS)


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


def report(spent: Spent) -> str:
    """List the cost of a call by part, a line each, and the sums."""
    calls = by_part(spent.calls)
    c_calls = by_part(spent.c_calls)
    bytecodes = by_part(spent.bytecodes)
    lines = [_line(calls[part], c_calls[part], bytecodes[part], part) for part in calls if calls[part]]
    total = _line(sum(calls.values()), sum(c_calls.values()), sum(bytecodes.values()), "in all")
    return "\n".join(["  Python       C bytecodes", *lines, total])


def _line(calls: float, c_calls: float, bytecodes: float, what: str) -> str:
    return f"{calls:8.1f}{c_calls:8.1f}{bytecodes:10.1f}  {what}"


def check(
    count: Callable[[], Spent], report: Callable[[Spent], str], *, calls: float, c_calls: float, bytecodes: float
) -> None:
    """Assert that what a call takes is within these ceilings. Prints the report.

    They are of Python 3.11. Later versions make as many calls, and up to a tenth fewer bytecodes.
    """
    spent = count()
    print(f"\n{report(spent)}")
    sums = [sum(counter.values()) for counter in (spent.calls, spent.c_calls, spent.bytecodes)]
    within = [amount <= ceiling for amount, ceiling in zip(sums, (calls, c_calls, bytecodes), strict=True)]
    assert all(within), f"Python calls, C calls, bytecodes: {sums}"


def main() -> None:
    spent = spent_per_call()
    for function, count in spent.bytecodes.items():
        if count >= 1:
            print(_line(spent.calls.get(function, 0), spent.c_calls.get(function, 0), count, "  ".join(function)))
    print()
    print(report(spent))


if __name__ == "__main__":
    main()
