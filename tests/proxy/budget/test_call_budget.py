"""A governed call stays within its budget of Python calls and instructions. Prints both, by part: `pytest -s`."""

import pytest

from tests.proxy.budget.canned_worker import ANSWER, CALLERS, SLUG, canned_worker
from tests.proxy.budget.counting import calls_by_function, instructions, missing_tool, report

MOST_CALLS = 92
MOST_INSTRUCTIONS = 400_000
"""347 000 on a quiet machine. Runs beside other load counted up to a tenth more."""


def test_canned_call_is_a_governed_call() -> None:
    with canned_worker() as (runner, worker):
        callers = runner.run(worker.serve(4))
        assert worker.loop.redis.takes == CALLERS * 4
        assert worker.journal.pending == 0
    body = ANSWER.partition(b"\r\n\r\n")[2].replace(b'"gpt"', b'"%b"' % SLUG.encode())
    assert all(answer.endswith(body) for caller in callers for answer in caller.answers)


def test_python_calls_of_a_governed_call() -> None:
    calls = calls_by_function()
    print(f"\n{report(calls)}")
    assert sum(calls.values()) <= MOST_CALLS


@pytest.mark.skipif(missing_tool() != "", reason=f"instructions cannot be counted without {missing_tool()}")
@pytest.mark.timeout(600)  # valgrind takes fifty times as long
def test_instructions_of_a_governed_call() -> None:
    counted = instructions()
    print(f"\n{counted:,.0f} instructions per governed call")
    assert counted <= MOST_INSTRUCTIONS
