"""Prints what of a governed call the interpreter cannot specialise: `python -m tests.proxy.budget.unspecialised`.

An instrument, not a test: such a look-up or call costs more than its bytecodes say (docs/hot-path.md). It knows the
instructions of CPython 3.11.
"""

import dis
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any

from tests.proxy.budget.canned_worker import CALLERS, canned_worker
from tests.proxy.budget.counting import Functions

WARM_CALLS = 300
"""Calls of each caller before the look: by then whatever can be specialised is."""
COUNTED_CALLS = 40
_KINDS = {
    "LOAD_ATTR_ADAPTIVE": "attribute",
    "STORE_ATTR_ADAPTIVE": "attribute set",
    "LOAD_ATTR_WITH_HINT": "attribute in a dictionary",
    "LOAD_METHOD_ADAPTIVE": "method",
    "PRECALL_ADAPTIVE": "call",
}


def general_instructions(code: CodeType) -> dict[int, str]:
    """The instructions that stayed general, by offset: what each does, and the name that it looks up."""
    return {
        one.offset: f"{_KINDS[one.opname]} {one.argrepr}".rstrip()
        for one in dis.get_instructions(code, adaptive=True)
        if one.opname in _KINDS
    }


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count how often the product's own code executes such instructions, by line."""
    functions = Functions()
    instructions_of = cache(general_instructions)
    counts: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _arg: object) -> Callable[..., Any] | None:
        function = functions.of(frame)
        if function is None:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and (what := instructions_of(frame.f_code).get(frame.f_lasti)) is not None:
            path, name = function
            counts[f"{path}:{frame.f_lineno}  {name}  {what}"] += 1
        return count

    sys.settrace(count)
    try:
        yield counts
    finally:
        sys.settrace(None)


def main() -> None:
    with canned_worker() as (runner, worker):
        runner.run(worker.serve(WARM_CALLS))
        with counting() as counts:
            runner.run(worker.serve(COUNTED_CALLS))
    for line, count in sorted(counts.items()):
        print(f"{count / CALLERS / COUNTED_CALLS:6.2f}  {line}")


if __name__ == "__main__":
    main()
