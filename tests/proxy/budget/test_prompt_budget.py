"""A call with a 400 kB prompt stays within its budget of Python calls and instructions. Prints both: `pytest -s`."""

import pytest

from tests.proxy.budget.canned_worker import CALLERS, canned_worker, request_of
from tests.proxy.budget.counting import calls_by_function, instructions, missing_tool, report

PROMPT = b"What does the quick brown fox do? What does the quick "
TIMES = 7400
MOST_CALLS = 150
MOST_INSTRUCTIONS = 3_200_000
"""2 770 000 were counted, canned wires included. One more search for several bytes in the prompt takes a million."""


def test_prompt_reaches_the_upstream() -> None:
    request = request_of(PROMPT * TIMES)
    with canned_worker() as (runner, worker):
        runner.run(worker.serve(3, request))
        assert worker.loop.redis.takes == CALLERS * 3
        _, _, sent = worker.egress.latest.partition(b"\r\n\r\n")
    assert sent == request.partition(b"\r\n\r\n")[2].replace(b'"acme/chat"', b'"gpt"', 1)


def test_python_calls_of_a_prompt() -> None:
    calls = calls_by_function(request_of(PROMPT * TIMES))
    print(f"\n{report(calls)}")
    assert sum(calls.values()) <= MOST_CALLS


@pytest.mark.skipif(missing_tool() != "", reason=f"instructions cannot be counted without {missing_tool()}")
@pytest.mark.timeout(600)  # valgrind takes fifty times as long
def test_instructions_of_a_prompt() -> None:
    counted = instructions(5, 15, str(TIMES))
    print(f"\n{counted:,.0f} instructions per prompt")
    assert counted <= MOST_INSTRUCTIONS
