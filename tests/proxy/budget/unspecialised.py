"""Prints what a governed call does that the interpreter cannot specialise: `python -m tests.proxy.budget.unspecialised`.

An instrument, not a test: such a look-up or call costs more than its bytecodes say (docs/hot-path.md). For CPython 3.11,
whose names of instructions it knows.
"""

import dis
import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
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

Place = tuple[CodeType, int]
"""A code object and the offset of an instruction."""


def unspecialised() -> dict[Place, str]:
    """The instructions of all functions that stayed general: what each does, and the name that it looks up."""
    places = {}
    for code in {one.__code__ for one in gc.get_objects() if isinstance(one, FunctionType)}:
        for instruction in dis.get_instructions(code, adaptive=True):
            if (kind := _KINDS.get(instruction.opname)) is not None:
                places[code, instruction.offset] = f"{kind} {instruction.argrepr}".rstrip()
    return places


@contextmanager
def counting(places: dict[Place, str]) -> Iterator[Counter[str]]:
    """Count how often the product's own code executes these, by line."""
    functions = Functions()
    counts: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _arg: object) -> Callable[..., Any] | None:
        function = functions.of(frame)
        if function is None:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and (what := places.get((frame.f_code, frame.f_lasti))) is not None:
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
        gc.unfreeze()  # no list has what is frozen
        with counting(unspecialised()) as counts:
            runner.run(worker.serve(COUNTED_CALLS))
    for line, count in sorted(counts.items()):
        print(f"{count / CALLERS / COUNTED_CALLS:6.2f}  {line}")


if __name__ == "__main__":
    main()
